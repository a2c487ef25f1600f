// Long names in the head of a table may break after an underscore.
document.addEventListener("DOMContentLoaded", () => {
  for (const cell of document.querySelectorAll("article table th p, article table th code")) {
    for (const node of [...cell.childNodes]) {
      if (node.nodeType !== Node.TEXT_NODE || !node.data.includes("_")) continue;
      const parts = node.data.split(/(?<=_)/);
      node.replaceWith(...parts.flatMap((part, i) => i ? [document.createElement("wbr"), part] : [part]));
    }
  }
});

// Display formulas that are wider than their column become smaller, as far as they stay legible.
// Where that is not enough, the contents of the page beside the column give their room to it.
const LEAST = 0.7; // of the size of a formula
function fitFormulas() {
  const formulas = [...document.querySelectorAll('article mjx-container[display="true"]')];
  const share = formula => formula.clientWidth / formula.scrollWidth;
  const contents = document.querySelector(".bd-sidebar-secondary");
  if (contents?.offsetWidth && formulas.some(f => 0.99 * share(f) < LEAST)) contents.style.display = "none";
  for (const formula of formulas) {
    const size = parseFloat(formula.style.fontSize) || 100; // in per cent, set by MathJax
    if (share(formula) < 0.999) formula.style.fontSize = `${size * Math.max(LEAST, 0.99 * share(formula))}%`;
  }
}
document.addEventListener("DOMContentLoaded", () => {
  if (window.MathJax?.startup?.promise) MathJax.startup.promise.then(fitFormulas);
});
