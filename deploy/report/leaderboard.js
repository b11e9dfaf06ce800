// Hide rows that break a constraint, and sort by exact numbers. TABLES has the numbers of each row
// of each table, in their order on the page.
const status_ = document.getElementById("live");
const tables = [...document.querySelectorAll("table")].map((table, i) => ({
  element: table,
  rows: [...table.tBodies[0].rows].map((element, j) => ({ element, ...TABLES[i][j] })),
}));

const bar = document.createElement("form");
bar.className = "filters";
const fields = {};
function field(name, kind, text) {
  const label = document.createElement("label");
  fields[name] = Object.assign(document.createElement("input"), { type: kind, name });
  if (kind === "number") fields[name].min = 0;
  label.append(...(kind === "checkbox" ? [fields[name], text] : [text, fields[name]]));
  bar.append(label);
}
field("noPublic", "checkbox", "no public data");
field("oneShot", "checkbox", "one-shot methods only");
field("memory", "number", "kB of memory of the largest client, at most");
field("bytes", "number", "kB a round, at most");
status_.after(bar);

const within = (value, input) =>
  input.value === "" || (value !== null && value <= 1000 * Number(input.value));

function filter() {
  let shown = 0, all = 0;
  for (const table of tables) {
    for (const row of table.rows) {
      const kept = !(fields.noPublic.checked && row.public)
        && !(fields.oneShot.checked && !row.oneShot)
        && within(row.memory, fields.memory) && within(row.bytes, fields.bytes);
      row.element.hidden = !kept;
      shown += kept;
      all += 1;
    }
  }
  status_.textContent = `${shown} of ${all} rows shown; click a heading to sort`;
}

for (const { element, rows } of tables) {
  const numbers = new Map(rows.map(row => [row.element, row.sort]));
  sortable(element, (row, column) => numbers.get(row)[column]);
}
bar.addEventListener("input", filter);
bar.addEventListener("submit", event => event.preventDefault());
filter();
