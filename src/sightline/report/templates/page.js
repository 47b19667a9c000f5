"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const box = document.getElementById("map-box");
  if (box) {
    const { names, kinds, kind_of } = JSON.parse(document.getElementById("map-data").textContent);
    const points = all(".map path", box), tip = document.getElementById("tip");
    const search = document.getElementById("map-search"), count = document.getElementById("map-count");
    const buttons = all(".kinds button", box);
    let kind = -1;
    const select = () => {
      const word = search.value.trim().toLowerCase();
      const picked = names.map((name, i) => (kind < 0 || kind_of[i] === kind) && (!word || name.toLowerCase().includes(word)));
      const some = kind >= 0 || word !== "";
      box.classList.toggle("dim", some);
      points.forEach((point) => point.classList.toggle("on", some && picked[point.dataset.i]));
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === kind)));
      count.textContent = some ? picked.filter(Boolean).length + " of " + names.length + " classes" : "";
    };
    search.addEventListener("input", select);
    buttons.forEach((button, i) => button.addEventListener("click", () => { kind = kind === i ? -1 : i; select(); }));
    const near = (i) => points.forEach((point) => point.classList.toggle("near", point.dataset.i === i));
    box.addEventListener("pointermove", (event) => {
      const i = event.target.dataset ? event.target.dataset.i : undefined;
      tip.hidden = i === undefined;
      near(i);
      if (i === undefined) return;
      tip.textContent = names[i] + (kinds.length > 1 ? " · " + kinds[kind_of[i]] : "");
      tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.max(4, event.clientY - 34) + "px";
    });
    box.addEventListener("pointerleave", () => { tip.hidden = true; near(); });
  }
  const table = document.querySelector("#classes-table table");
  if (table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = all("thead th", table);
    const search = document.getElementById("class-search"), count = document.getElementById("class-count");
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const filter = () => {
      const words = search.value.trim().toLowerCase().split(/\s+/);
      let n = 0;
      rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); n += !row.hidden; });
      count.textContent = n + " of " + rows.length + " classes";
    };
    search.addEventListener("input", filter);
    filter();
    const order = new Map(rows.map((row, i) => [row, i]));
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
      const words = head.classList.contains("left");
      const key = (row) => { const text = row.cells[column].textContent.trim(); return words ? text : text === "" ? NaN : parseFloat(text.replace("−", "-")); };
      const keyed = rows.map((row) => [key(row), row]);
      keyed.sort(([a, x], [b, y]) => {
        const empty = words ? (a === "") - (b === "") : Number.isNaN(a) - Number.isNaN(b);
        return empty || (words ? down * a.localeCompare(b) : down * (a - b)) || order.get(x) - order.get(y);
      });
      body.append(...keyed.map(([, row]) => row));
    }));
  }
})();
