"use strict";
(() => {
  const { NS, save, standalone, csv } = heatsmooth;
  document.querySelectorAll(".figure").forEach((figure) => {
    const plot = figure.querySelector(".plot"), tip = figure.querySelector(".tip"), table = figure.querySelector("table");
    const shown = () => [...plot.querySelectorAll("svg")].find((svg) => svg.getBoundingClientRect().width > 0);
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const rows = [...table.tBodies[0].rows].map((row) => ({
      x: Number(row.cells[0].dataset.x), name: row.cells[0].textContent,
      cells: [...row.cells].slice(1).map((c) => c.textContent),
    }));
    let at = -1;

    const clear = () => {
      at = -1;
      tip.hidden = true;
      plot.querySelectorAll(".cursor").forEach((group) => group.replaceChildren());
    };
    const nearest = (column, from) => {
      for (let step = 0; step < rows.length; step++) {
        for (const row of [rows[from - step], rows[from + step]]) if (row && row.cells[column]) return row;
      }
      return null;
    };
    const show = (index) => {
      const svg = shown();
      if (!svg || !rows.length) return;
      at = Math.max(0, Math.min(rows.length - 1, index));
      const g = Object.fromEntries(Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
      const px = (x) => g.left + ((g.right - g.left) * x) / g.x;
      const py = (y) => g.bottom - ((g.bottom - g.top) * Math.min(y, g.y)) / g.y;
      const cursor = svg.querySelector(".cursor"), line = document.createElementNS(NS, "line"), x = px(rows[at].x);
      Object.entries({ x1: x, x2: x, y1: g.top, y2: g.bottom }).forEach(([name, value]) => line.setAttribute(name, value));
      const title = document.createElement("b");
      title.textContent = `${table.dataset.x} ${rows[at].name}`;
      cursor.replaceChildren(line);
      tip.replaceChildren(title);
      heads.forEach((head, column) => {
        if (head.dataset.kind !== "value") return;
        const row = nearest(column, at);
        if (!row) return;
        const dot = document.createElementNS(NS, "circle");
        Object.entries({ cx: px(row.x), cy: py(Number(row.cells[column])), r: 4, class: head.dataset.style })
          .forEach(([name, value]) => dot.setAttribute(name, value));
        cursor.append(dot);
        const entry = document.createElement("span"), swatch = document.createElement("i");
        swatch.className = head.dataset.style;
        const band = heads[column + 1]?.dataset.kind === "low" ? ` (${row.cells[column + 1]}–${row.cells[column + 2]})` : "";
        const where = row === rows[at] ? "" : ` at ${row.name}`;
        entry.append(swatch, `${head.dataset.name}: ${row.cells[column]}${band}${where}`);
        tip.append(entry);
      });
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
      const left = x * scale, over = left + 16 + tip.offsetWidth > box.width;
      tip.style.left = `${Math.max(0, over ? left - 16 - tip.offsetWidth : left + 16)}px`;
      tip.style.top = `${g.top * scale + 8}px`;
    };
    const follow = (event) => {
      const svg = shown();
      if (!svg) return;
      const box = svg.getBoundingClientRect(), g = svg.dataset, scale = svg.viewBox.baseVal.width / box.width;
      const x = (((event.clientX - box.left) * scale - g.left) / (g.right - g.left)) * g.x;
      let best = 0;
      rows.forEach((row, i) => { if (Math.abs(row.x - x) < Math.abs(rows[best].x - x)) best = i; });
      show(best);
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? rows.length - 1 : at - 1, Home: 0, End: rows.length - 1 };
      if (event.key === "Escape") clear();
      else if (event.key in moves) { show(moves[event.key]); event.preventDefault(); }
    });
    figure.querySelector("[data-save=svg]").addEventListener("click", () => {
      clear();
      save(`${figure.dataset.key}.svg`, "image/svg+xml", standalone(shown()));
    });
    figure.querySelector("[data-save=csv]").addEventListener("click", () => save(`${figure.dataset.key}.csv`, "text/csv", csv(table)));
  });
})();
