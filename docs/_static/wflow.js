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
function fitFormulas() {
  for (const formula of document.querySelectorAll('article mjx-container[display="true"]')) {
    const share = formula.clientWidth / formula.scrollWidth;
    const size = parseFloat(formula.style.fontSize) || 100; // in per cent, set by MathJax
    if (share < 0.999) formula.style.fontSize = `${size * Math.max(0.75, 0.99 * share)}%`;
  }
}
document.addEventListener("DOMContentLoaded", () => {
  if (window.MathJax?.startup?.promise) MathJax.startup.promise.then(fitFormulas);
});
