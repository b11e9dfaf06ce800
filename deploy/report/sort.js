"use strict";
// Sort a table by a click on a heading. `value(row, column)` is a number, a text, or null.
function sortable(table, value) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  function sort(column) {
    const up = heads[column].getAttribute("aria-sort") === "descending";
    heads.forEach(head => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map(row => [value(row, column), row]);
    rows.sort(([x], [y]) => {
      if (x === null || y === null) return (x === null) - (y === null); // missing numbers are last
      const order = typeof x === "string" || typeof y === "string" ? `${x}`.localeCompare(`${y}`) : x - y;
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
  }
  heads.forEach((head, column) => {
    if (value(body.rows[0], column) === undefined) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent || "name";
    button.addEventListener("click", () => sort(column));
    head.replaceChildren(button);
  });
}

// Number of a cell in its base unit: "4.58 MB" is 4580000, "3 min 20 s" is 200; null: a dash.
const UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, min: 60, h: 3600 };
function cellValue(row, column) {
  const text = row.cells[column].textContent.trim();
  if (text === "–") return null;
  const parts = [...text.replaceAll(",", "").replaceAll("−", "-").matchAll(/(-?\d+(?:\.\d+)?) ?(min|h|s\b|[kMGTP](?=B|FLOP))?/g)];
  if (!parts.length || !/^-?[\d.]/.test(text.replace("−", "-"))) return text;
  const timed = parts.filter(part => ["min", "h", "s"].includes(part[2]));
  const used = timed.length ? timed : parts.slice(0, 1);
  return used.reduce((sum, part) => sum + Number(part[1]) * (UNITS[part[2]] ?? 1), 0);
}
