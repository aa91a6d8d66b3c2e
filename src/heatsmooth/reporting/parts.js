"use strict";
/* What every page has: the theme, the place in the contents, and saving what is shown. */
const heatsmooth = (() => {
  const root = document.documentElement, NS = "http://www.w3.org/2000/svg";
  const themes = ["auto", "light", "dark"], button = document.querySelector(".theme");
  const remembered = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("heatsmooth-theme", value);
      return localStorage.getItem("heatsmooth-theme");
    } catch { return null; }
  };
  const paint = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(remembered()) ? remembered() : "auto";
  paint(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % 3];
    remembered(theme);
    paint(theme);
  });

  const save = (name, type, content) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  /* A drawing that stands alone: the colours of the light theme, written into each element. */
  const standalone = (svg) => {
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "font-family", "font-size"];
    from.forEach((element, i) => {
      const style = getComputedStyle(element);
      kept.forEach((name) => to[i].setAttribute(name, style.getPropertyValue(name)));
      ["class", "style"].forEach((name) => to[i].removeAttribute(name));
    });
    if (before === undefined) root.removeAttribute("data-theme"); else root.dataset.theme = before;
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    Object.entries({ xmlns: NS, width, height }).forEach(([name, value]) => copy.setAttribute(name, value));
    return new XMLSerializer().serializeToString(copy);
  };

  const csv = (table) => {
    const cell = (text) => {
      const safe = /^[=+@\t]/.test(text) ? `'${text}` : text;
      return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    return [...table.rows].map((row) => [...row.cells].map((c) => cell(c.textContent.trim())).join(",")).join("\n") + "\n";
  };

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }), { rootMargin: "-10% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((section) => here.observe(section));

  return { NS, save, standalone, csv };
})();
