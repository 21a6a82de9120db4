// Filters and sorts the table of rows. Without it, the page shows the same rows, failures first.
(() => {
  const table = document.getElementById("rows");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const form = document.getElementById("filter");
  const text = form.elements.text, outcome = form.elements.outcome;
  const shown = document.getElementById("shown");
  const contents = new Map();
  const contentOf = (row) => {
    if (!contents.has(row)) contents.set(row, row.textContent.toLowerCase());
    return contents.get(row);
  };
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const row of rows) {
      const isFailed = !["ok", "waiting"].includes(row.dataset.outcome);
      const fits = (!outcome.value || outcome.value === row.dataset.outcome
          || (outcome.value === "failed" && isFailed))
        && words.every((word) => contentOf(row).includes(word));
      row.hidden = !fits;
      number += fits;
    }
    shown.textContent = `${number.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
  };
  const valueIn = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === undefined ? row.cells[column].textContent : value === "" ? -1 : Number(value);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const sort = (heading) => {
    const isDescending = heading.ariaSort === "ascending";
    for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
    heading.ariaSort = isDescending ? "descending" : "ascending";
    const keyed = rows.map((row) => [valueIn(row, heading.cellIndex), row]);
    keyed.sort((a, b) => isDescending ? compare(b[0], a[0]) : compare(a[0], b[0]));
    body.append(...keyed.map(([, row]) => row));
  };
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => sort(heading));
    heading.replaceChildren(button);
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
