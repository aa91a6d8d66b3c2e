"use strict";
(() => {
  const { NS, save, standalone, csv } = heatsmooth;
  document.querySelectorAll(".board").forEach((board) => {
    const data = JSON.parse(board.querySelector(".curves").textContent), xs = data.x;
    const figure = board.querySelector(".figure"), plot = figure.querySelector(".plot"), tip = figure.querySelector(".tip");
    const drawings = [...plot.querySelectorAll("svg")], table = board.querySelector(".table table");
    const groups = [...table.querySelectorAll("tbody.group")], flat = table.querySelector("tbody.flat");
    const rows = [...table.querySelectorAll("tr.row")], said = board.querySelector("p.sr");
    const box = (row) => row.querySelector("input"), on = (row) => box(row).checked;
    const nameOf = (row) => row.cells[0].textContent.trim();
    const share = (row, i) => { const { m, k } = data.rows[row.dataset.key]; return (k[i] ?? 0) / m; };
    const inGroup = (group) => rows.filter((row) => row.dataset.group === group.dataset.group);

    /* The corners of a step curve in pixels, as the first drawing has them. */
    const path = (svg, values) => {
      const g = Object.fromEntries(Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
      const px = (x) => Number((g.left + ((g.right - g.left) * x) / g.x).toFixed(1));
      const py = (y) => Number((g.bottom - ((g.bottom - g.top) * Math.min(y, g.y)) / g.y).toFixed(1));
      const kept = [];
      const add = (point) => {
        const [a, b] = kept.slice(-2);
        if (b && ((a[0] === b[0] && b[0] === point[0]) || (a[1] === b[1] && b[1] === point[1]))) kept[kept.length - 1] = point;
        else if (!kept.length || kept.at(-1)[0] !== point[0] || kept.at(-1)[1] !== point[1]) kept.push(point);
      };
      values.slice(0, values.filter((y) => y > 0).length + 1).forEach((y, i) => { add([px(xs[Math.max(0, i - 1)]), py(y)]); add([px(xs[i]), py(y)]); });
      return "M" + kept.map((point) => point.join(" ")).join("L");
    };

    /* The best row of a group that is on, at each radius. */
    const envelope = (group) => {
      const shown = inGroup(group).filter(on);
      return xs.map((_, i) => shown.reduce((best, row) => (share(row, i) > best.y ? { y: share(row, i), row } : best), { y: 0, row: null }));
    };
    let best = new Map(groups.map((group) => [group, envelope(group)]));

    const draw = () => {
      best = new Map(groups.map((group) => [group, envelope(group)]));
      drawings.forEach((svg) => {
        rows.forEach((row) => {
          const line = svg.querySelector(`.faint[data-key="${row.dataset.key}"]`);
          if (line && !on(row)) line.remove();
          if (!line && on(row)) {
            const added = document.createElementNS(NS, "path"), style = groups.findIndex((g) => g.dataset.group === row.dataset.group) % 8;
            const values = xs.map((_, i) => share(row, i));
            Object.entries({ class: `faint s${style}`, "data-key": row.dataset.key, d: path(svg, values) }).forEach(([k, v]) => added.setAttribute(k, v));
            svg.insertBefore(added, svg.querySelector(".line[data-key]"));
          }
        });
        groups.forEach((group) => {
          const line = svg.querySelector(`.envelope[data-key="${group.dataset.group}"]`);
          line.setAttribute("d", path(svg, best.get(group).map(({ y }) => y)));
          line.style.display = inGroup(group).some(on) ? "" : "none";
        });
      });
      rows.forEach((row) => row.classList.toggle("off", !on(row)));
      groups.forEach((group) => {
        const own = inGroup(group), shown = own.filter(on).length, all = group.querySelector(".heading input");
        all.checked = shown > 0;
        all.indeterminate = shown > 0 && shown < own.length;
      });
      mark();
    };

    /* The largest value of each column: in the rows of envelopes, and marked in the row that has it. */
    const columns = [...table.tHead.rows[0].cells].map((cell, i) => (cell.textContent.startsWith("r = ") ? i : -1)).filter((i) => i >= 0);
    const mark = () => {
      const value = (row, column) => Number(row.cells[column].dataset.v);
      const largest = (shown, column) => Math.max(...shown.map((row) => value(row, column)));
      groups.forEach((group) => {
        const own = inGroup(group), shown = own.filter(on);
        columns.forEach((column) => {
          const most = largest(shown, column);
          group.querySelector("tr.best").cells[column].textContent = shown.length ? most.toFixed(3) : "–";
          own.forEach((row) => row.cells[column].classList.toggle("top", on(row) && most > 0 && value(row, column) === most));
        });
      });
      const overall = table.querySelector(".overall tr");
      const shown = groups.filter((group) => "average" in group.dataset).flatMap(inGroup).filter(on);
      if (overall) columns.forEach((column) => { overall.cells[column].textContent = shown.length ? largest(shown, column).toFixed(3) : "–"; });
    };

    /* Sorting, within each group or over all of them. */
    const grouped = board.querySelector("[data-grouped]");
    const sort = () => {
      const head = table.querySelector('th[aria-sort="ascending"], th[aria-sort="descending"]');
      if (!head) return;
      const column = head.cellIndex, sign = head.ariaSort === "ascending" ? 1 : -1, text = head.dataset.kind === "text";
      const compare = (a, b) => {
        const [p, q] = [a, b].map((row) => row.cells[column].dataset.v);
        if (p === "" || q === "") return (p === "") - (q === "");
        return sign * (text ? p.localeCompare(q, "en", { numeric: true }) : Number(p) - Number(q));
      };
      [flat, ...groups].forEach((body) => body.append(...[...body.querySelectorAll("tr.row")].sort(compare)));
    };
    table.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
      const head = button.parentElement, first = head.dataset.kind === "text" ? "ascending" : "descending";
      const turned = { ascending: "descending", descending: "ascending" }[head.ariaSort] ?? first;
      table.querySelectorAll("th[aria-sort]").forEach((other) => { other.ariaSort = "none"; });
      head.ariaSort = turned;
      sort();
      said.textContent = `Sorted by ${button.textContent}, ${turned}`;
    }));
    grouped.addEventListener("click", () => {
      const apart = grouped.getAttribute("aria-pressed") !== "true";
      grouped.setAttribute("aria-pressed", String(apart));
      const mixed = groups.filter((group) => "average" in group.dataset);
      mixed.forEach((group) => (apart ? group : flat).append(...inGroup(group)));
      mixed.forEach((group) => { group.hidden = !apart; });
      flat.hidden = apart;
      sort();
    });

    /* Switches. */
    table.addEventListener("change", (event) => {
      const line = event.target.closest("tr");
      if (line.classList.contains("heading")) inGroup(line.parentElement).forEach((row) => { box(row).checked = event.target.checked; });
      draw();
    });
    board.querySelectorAll("[data-all]").forEach((button) => button.addEventListener("click", () => {
      rows.forEach((row) => { box(row).checked = button.dataset.all === "on"; });
      draw();
    }));
    const light = (row, lit) => plot.querySelectorAll(`.faint[data-key="${row.dataset.key}"]`).forEach((line) => line.classList.toggle("lit", lit));
    rows.forEach((row) => {
      ["pointerenter", "focusin"].forEach((name) => row.addEventListener(name, () => light(row, true)));
      ["pointerleave", "focusout"].forEach((name) => row.addEventListener(name, () => light(row, false)));
    });

    /* Reading the envelope, by hand and by key. */
    let at = -1;
    const visible = () => drawings.find((svg) => svg.getBoundingClientRect().width > 0);
    const clear = () => { at = -1; tip.hidden = true; plot.querySelectorAll(".cursor").forEach((group) => group.replaceChildren()); };
    const show = (index) => {
      const svg = visible();
      if (!svg) return;
      at = Math.max(0, Math.min(xs.length - 1, index));
      const { left, right, top, bottom, x: most } = svg.dataset;
      const x = Number(left) + ((right - left) * xs[at]) / most, line = document.createElementNS(NS, "line");
      Object.entries({ x1: x, x2: x, y1: top, y2: bottom }).forEach(([name, value]) => line.setAttribute(name, value));
      svg.querySelector(".cursor").replaceChildren(line);
      const title = document.createElement("b");
      title.textContent = `L2 radius r ${xs[at]}`;
      tip.replaceChildren(title);
      groups.forEach((group, style) => {
        const { y, row } = best.get(group)[at];
        if (!row) return;
        const entry = document.createElement("span"), swatch = document.createElement("i");
        swatch.className = `s${style % 8}`;
        entry.append(swatch, `${group.dataset.name}: ${y.toFixed(3)}, ${nameOf(row)}`);
        tip.append(entry);
      });
      tip.hidden = false;
      const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width, from = x * scale;
      const over = from + 16 + tip.offsetWidth > frame.width;
      tip.style.left = `${Math.max(0, over ? from - 16 - tip.offsetWidth : from + 16)}px`;
      tip.style.top = `${top * scale + 8}px`;
    };
    const follow = (event) => {
      const svg = visible();
      if (!svg) return;
      const frame = svg.getBoundingClientRect(), { left, right, x: most } = svg.dataset;
      const x = ((((event.clientX - frame.left) * svg.viewBox.baseVal.width) / frame.width - left) / (right - left)) * most;
      show(xs.reduce((near, value, i) => (Math.abs(value - x) < Math.abs(xs[near] - x) ? i : near), 0));
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? xs.length - 1 : at - 1, Home: 0, End: xs.length - 1 };
      if (event.key === "Escape") clear();
      else if (event.key in moves) { show(moves[event.key]); event.preventDefault(); }
    });

    /* What is switched on, as files. */
    const key = figure.dataset.key;
    const curves = () => {
      const shown = rows.filter(on), made = document.createElement("table");
      const line = (cells) => cells.reduce((row, text) => { row.insertCell().textContent = text; return row; }, made.insertRow());
      line(["radius", ...groups.map((group) => `envelope ${group.dataset.name}`), ...shown.map(nameOf)]);
      xs.forEach((x, i) => line([x, ...groups.map((group) => best.get(group)[i].y.toFixed(4)), ...shown.map((row) => share(row, i).toFixed(4))]));
      return csv(made);
    };
    figure.querySelector("[data-save=svg]").addEventListener("click", () => { clear(); save(`${key}.svg`, "image/svg+xml", standalone(visible())); });
    figure.querySelector("[data-save=csv]").addEventListener("click", () => save(`${key}-curves.csv`, "text/csv", curves()));
    board.querySelector("[data-save=table]").addEventListener("click", () => save(`${key}.csv`, "text/csv", csv(table)));
    draw();
  });
})();
