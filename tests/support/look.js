// Return what is wrong with the look of the page: text with a contrast below WCAG's level AA, and
// links and controls that the keyboard does not reach.
(() => {
  const parse = text => {
    const [r, g, b, a = 1] = (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const unit = text.startsWith("color(") ? 255 : 1;
    return [r * unit, g * unit, b * unit, a];
  };
  const over = ([r, g, b, a], back) => [r, g, b].map((v, i) => v * a + back[i] * (1 - a));
  const back = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    return layers.reverse().reduce((below, layer) => over(layer, below), dark ? [18, 18, 18] : [255, 255, 255]);
  };
  const light = colour => {
    const [r, g, b] = colour.map(v => v / 255).map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const wrong = new Set();
  const visible = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getClientRects().length;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    if (!text || !visible(element) || element.closest("svg, script, style, noscript, [hidden], del")) continue;
    const style = getComputedStyle(element), below = back(element);
    const [a, b] = [light(over(parse(style.color), below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) wrong.add(`contrast ${ratio.toFixed(2)}: ${style.color}, "${text.slice(0, 40)}"`);
  }
  for (const element of document.querySelectorAll("article a[href], article button, article input, article summary, main button")) {
    if (visible(element) && element.tabIndex < 0) wrong.add(`no keyboard: ${element.outerHTML.slice(0, 80)}`);
  }
  return [...wrong];
})()
