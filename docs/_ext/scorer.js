// The scores of Sphinx (basic/static/searchtools.js), but for three rules: what has the name that is
// searched comes first, that of the particles before that of losses, samplers, networks and
// studies, and pages that are tables of numbers come last.
var Scorer = {
  score: ([page, , , , score]) => {
    if (/^(performance|results\/ott_tables)/.test(page)) return score - 100;
    return /^api\/wflow\.(losses|nets|sampling|study)\b/.test(page) ? score - 1 : score;
  },
  objNameMatch: 40,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
