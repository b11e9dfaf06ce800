"use strict";
// Show the methods whose data attributes have the chosen answers.
(() => {
  const form = document.getElementById("chooser");
  const items = [...document.querySelectorAll("#fitting li")];
  function filter() {
    const answers = [...new FormData(form)].filter(([, value]) => value !== "");
    let fitting = 0;
    for (const item of items) {
      item.hidden = !answers.every(([key, value]) => item.dataset[key].split(" ").includes(value));
      fitting += !item.hidden;
    }
    document.getElementById("count").textContent = `${fitting} of ${items.length} methods fit`;
  }
  form.addEventListener("change", filter);
  filter();
})();
