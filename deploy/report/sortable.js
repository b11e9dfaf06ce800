// The tables of results; those behind plots stay in the order of the plot.
for (const table of document.querySelectorAll(".card > .scroll > table")) {
  if (table.tBodies[0].rows.length > 1) sortable(table, cellValue);
}
