"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg", facts = JSON.parse(document.getElementById("facts").textContent);
  const at = (id) => document.getElementById(id), name = (c) => facts.names[c];
  const element = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
  const percent = (p) => p > 0.9995 ? "> 99.9\u00a0%" : `${(100 * p).toFixed(1)}\u00a0%`;
  const count = (n) => n.toLocaleString("en");
  const SUBJECT = { network: "the network in one pass", average: "the Gaussian average" };
  const TOGETHER = 3;
  let items = [], current = null;

  const say = (where, text) => { if (where.textContent !== text) where.textContent = text; };
  const complain = (where, text) => { where.textContent = text; where.hidden = !text; };

  /* Passes the server-sent events of a study to `tell` as they arrive; throws a one-line error if it is refused or
     interrupted. An EventSource cannot send an image, so the events are read here. */
  async function study(address, body, signal, tell) {
    let answer;
    try {
      answer = await fetch(address, { method: "POST", body, signal, headers: { Accept: "text/event-stream" } });
    } catch (error) {
      if (signal.aborted) return false;
      throw new Error("The server does not answer. Is it still running?");
    }
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", last = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const event = JSON.parse(part.slice(part.indexOf("\ndata: ") + 7));
          if (event.kind === "error") throw new Error(event.message);
          last = event.kind;
          tell(event);
        }
      }
    } catch (error) {
      if (signal.aborted) return false;
      throw error instanceof TypeError ? new Error("The connection to the server broke off.") : error;
    }
    if (last !== "done" && last !== "average" && (facts.sigma !== null || last !== "attack")) throw new Error("The server stopped before the end.");
    return true;
  }

  const bars = (list, rows) => list.replaceChildren(...rows.map(([label, value, share]) => {
    const row = element("li"), bar = element("i");
    bar.style.setProperty("--share", `${100 * share}%`);
    row.append(element("span", label), element("span", value), bar);
    return row;
  }));

  const shape = (tag, attributes, text = "") => {
    const node = document.createElementNS(NS, tag);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.textContent = text;
    return node;
  };

  /* The radius by the number of samples, on a logarithmic axis from 50 samples to the last. */
  function draw(points) {
    const [left, right, top, bottom] = [46, 408, 24, 198], most = Math.max(facts.largestRadius, 1e-6);
    const power = 10 ** Math.floor(Math.log10(most)), step = [0.2, 0.5, 1].map((part) => part * power).find((part) => most / part < 5) || power;
    const first = Math.min(50, facts.samples), span = Math.log(facts.samples / first) || 1;
    const x = (n) => left + (right - left) * Math.log(Math.max(n, first) / first) / span;
    const y = (r) => bottom - (bottom - top) * r / most;
    const levels = Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
    const parts = levels.flatMap((r) => [
      shape("line", { class: "grid", x1: left, x2: right, y1: y(r), y2: y(r) }),
      shape("text", { class: "tick", x: left - 6, y: y(r) + 4, "text-anchor": "end" }, Number(r.toPrecision(3))),
    ]);
    parts.push(shape("line", { class: "mark", x1: left, x2: right, y1: y(most), y2: y(most) }));
    const ticks = [first, 10 * first, facts.samples].filter((n, i, all) => n <= facts.samples && (i !== 1 || all[2] > 3 * n));
    [...new Set(ticks)].forEach((n) => parts.push(
      shape("text", { class: "tick", x: x(n), y: bottom + 18, "text-anchor": n === facts.samples ? "end" : "middle" }, count(n))));
    parts.push(shape("text", { class: "axis", x: (left + right) / 2, y: 234, "text-anchor": "middle" }, "noise samples"));
    parts.push(shape("text", { class: "axis", x: left, y: y(most) - 8 }, "largest possible radius"));
    const steps = points.map(([n, r], i) => i ? `H${x(n)}V${y(r)}` : `M${x(n)},${y(r)}`).join("");
    if (steps) parts.push(shape("path", { class: "line", d: steps }));
    if (points.length) parts.push(shape("circle", { class: "now", cx: x(points.at(-1)[0]), cy: y(points.at(-1)[1]), r: 4 }));
    at("chart").replaceChildren(...parts);
  }

  const number = (title, claim) => {
    const row = element("div");
    row.append(element("dt", title), element("dd", claim.radius.toFixed(4)),
      element("dd", `Covers ${SUBJECT[claim.subject]}. Rests on: ${claim.basis}.`, "about"));
    return row;
  };

  const shown = {
    image(item, event) {
      at("seen").src = at("clean").src = event.data;
      bars(at("top"), event.top.map(([c, p]) => [name(c), percent(p), p]));
      const rows = [];
      if (event.calibrated) {
        const row = number("Calibrated radius", event.calibrated), c = event.calibrated.class;
        if (c !== item.onePass) row.lastChild.textContent += ` It is for the class “${name(c)}”.`;
        rows.push(row);
      }
      if (event.l_bound) {
        const row = number("L-bound", event.l_bound);
        row.lastChild.textContent += " Nothing checks this.";
        rows.push(row);
      }
      at("numbers").replaceChildren(...rows);
      if (event.deterministic) {
        const radius = event.deterministic.radius;
        at("proven").textContent = radius ? radius.toFixed(4) : "none";
        at("proven").classList.toggle("none", !radius);
        at("proven-verdict").textContent = radius
          ? `Within this distance the network says “${name(item.onePass)}”.`
          : "Nothing is proven about this image: its two best classes are too close.";
      }
      at("results").hidden = false;
    },
    copies(item, event) {
      at("noisy").replaceChildren(...event.copies.map(([data, c]) => {
        const figure = element("figure", "", c === item.onePass ? "" : "other");
        figure.append(Object.assign(element("img"), { src: data, alt: "A noisy copy" }), element("figcaption", name(c)));
        return figure;
      }));
    },
    radius(item, event) {
      at("radius").textContent = event.abstain ? "none yet" : event.radius.toFixed(4);
      at("radius").classList.toggle("none", event.abstain);
      const other = event.class === item.onePass ? "" : ` In one pass the network says “${name(item.onePass)}”; nothing is certified about that class.`;
      say(at("verdict"), (event.abstain
        ? `The samples do not yet show that the average says “${name(event.class)}”.`
        : `Within this distance the average says “${name(event.class)}”.`) + other);
      bars(at("counts"), event.counts.map(([c, k]) => [name(c), `${count(k)} of ${count(event.n)}`, k / event.n]));
      at("state").textContent = `${count(event.n)} samples`;
      draw(item.points);
    },
    waiting(item, event) {
      if (facts.sigma !== null) at("state").textContent = event.present > 1 ? `Sharing the network with ${event.present - 1} others …` : "Computing …";
    },
    done(item) {
      if (facts.sigma === null) return;
      at("state").textContent = `Done after ${count(item.n)} samples.`;
      if (item.abstain) say(at("verdict"), "The average abstains: the samples do not show which class is the most frequent. Nothing is certified.");
    },
    stopped(item) {
      if (facts.sigma !== null) at("state").textContent = `Stopped after ${count(item.n)} samples; the radius is valid.`;
    },
  };

  const started = (file) => ({
    file, events: {}, points: [], abstain: true, radius: 0, n: 0, onePass: null, message: "", abort: new AbortController(), tile: null,
  });
  const ended = (item) => Boolean(item.message || item.events.done || item.events.stopped);

  /* Keeps an event of an item, and shows it where the item is shown. */
  function happened(item, event) {
    item.events[event.kind] = event;
    if (event.kind === "image") item.onePass = event.top[0][0];
    if (event.kind === "radius") {
      Object.assign(item, event);
      item.points.push([event.n, event.radius]);
    }
    refresh(item);
    if (item !== current) return;
    shown[event.kind](item, event);
    if (ended(item)) finished();
  }

  const finished = () => {
    if (facts.sigma === null) return;
    at("stop").hidden = true;
    at("certificate").removeAttribute("aria-busy");
  };

  /* The short line about an item among several. */
  function refresh(item) {
    if (!item.tile) return;
    const [picture, title, claims] = item.tile.querySelectorAll("img, b, small"), seen = item.events.image;
    if (seen && picture.hidden) Object.assign(picture, { src: seen.data, hidden: false });
    title.textContent = item.message ? "refused" : seen ? name(item.onePass) : "…";
    const radius = (value) => value ? value.toFixed(4) : "none", lines = [];
    if (seen && seen.deterministic) lines.push(`Proven: ${radius(seen.deterministic.radius)}`);
    const other = item.class === item.onePass ? "" : ` for ${name(item.class)}`;
    if (item.n) lines.push(`Certified${other}: ${radius(item.abstain ? 0 : item.radius)}${ended(item) ? "" : " …"}`);
    claims.textContent = item.message ? item.file.name || "an image" : lines.join(" · ");
    item.tile.setAttribute("aria-pressed", String(item === current));
  }

  /* Shows all that is known of an item in the panels. */
  function show(item) {
    current = item;
    items.forEach(refresh);
    complain(at("message"), item.message && items.length > 1 ? `${item.file.name || "An image"}: ${item.message}` : item.message);
    complain(at("attack-message"), "");
    at("results").hidden = at("attacked").hidden = true;
    if (facts.sigma !== null) {
      at("radius").textContent = "…";
      at("verdict").textContent = at("state").textContent = "";
      at("counts").replaceChildren();
      at("noisy").replaceChildren();
      draw(item.points);
      at("stop").hidden = ended(item);
      at("certificate").toggleAttribute("aria-busy", !ended(item));
    }
    ["image", "copies", "radius", "done", "stopped"].forEach((kind) => { if (item.events[kind]) shown[kind](item, item.events[kind]); });
  }

  function fail(item, message) {
    item.message = message;
    if (item === current) {
      complain(at("message"), items.length > 1 ? `${item.file.name || "An image"}: ${message}` : message);
      finished();
    }
    refresh(item);
  }

  async function certify(item) {
    if (item.file.size > facts.mostBytes) {
      fail(item, `Expected at most ${facts.mostBytes / 1e6} MB, got ${(item.file.size / 1e6).toFixed(1)} MB; make the image smaller.`);
      return;
    }
    try {
      const whole = await study("/api/certify", item.file, item.abort.signal, (event) => happened(item, event));
      if (!whole && items.includes(item)) happened(item, { kind: "stopped" });
    } catch (error) {
      fail(item, error.message);
    }
  }

  const tile = (item) => {
    const row = element("li"), button = Object.assign(element("button", "", "tile-of"), { type: "button" }), text = element("span");
    text.append(element("b", "…"), element("small"));
    button.append(Object.assign(element("img"), { alt: item.file.name || "", hidden: true }), text);
    button.addEventListener("click", () => show(item));
    item.tile = button;
    row.append(button);
    return row;
  };

  /* Certifies files, a few at a time, and shows the first of them. */
  function take(files) {
    items.forEach((item) => item.abort.abort());
    const tooMany = files.length > facts.mostImages;
    const mine = items = files.slice(0, facts.mostImages).map(started);
    at("images").hidden = items.length < 2;
    at("tiles").replaceChildren(...(items.length > 1 ? items.map(tile) : []));
    show(items[0]);
    if (tooMany) complain(at("message"), `Expected at most ${facts.mostImages} images, got ${files.length}; the others are left out.`);
    const waiting = [...mine];
    const next = async () => { while (mine === items && waiting.length) await certify(waiting.shift()); };
    for (let i = 0; i < TOGETHER; i++) next();
  }

  const finding = (kind, text, about) => {
    const row = element("li", text, kind);
    row.append(element("small", about));
    at("findings").append(row);
  };

  const attacked = {
    attack(event) {
      const certificate = current, proven = (current.events.image.deterministic || { radius: 0 }).radius;
      const inside = !certificate.abstain && event.distance <= certificate.radius;
      at("adversarial").src = event.image;
      at("difference").src = event.difference;
      at("clean-says").textContent = `one pass: ${name(event.before)}`;
      at("difference-says").textContent = `difference, ${event.amplified < 10 ? event.amplified.toPrecision(2) : Math.round(event.amplified)}×, distance ${event.distance.toFixed(4)}`;
      at("adversarial-says").textContent = `one pass: ${name(event.class)} (${percent(event.probability)})`;
      at("findings").replaceChildren();
      finding(event.success ? "bad" : "", event.success
        ? `The network in one pass is fooled at distance ${event.distance.toFixed(4)}: “${name(event.before)}” became “${name(event.class)}”.`
        : `The attack failed: in one pass it is still “${name(event.class)}” at distance ${event.distance.toFixed(4)}.`,
      `Covers ${SUBJECT[event.subject]}. Rests on: ${event.basis}.`);
      if (proven) finding(event.distance <= proven ? "good" : "", event.distance <= proven
        ? `This is inside the proven radius ${proven.toFixed(4)}: the network still says “${name(event.before)}” there.`
        : `This is outside the proven radius ${proven.toFixed(4)}: nothing is proven there.`,
      `Covers ${SUBJECT.network}. Rests on: deterministic.`);
      if (!certificate.abstain) finding(inside ? "good" : "", inside
        ? `This is inside the certified radius ${certificate.radius.toFixed(4)}: the average still says “${name(certificate.class)}” there.`
        : `This is outside the certified radius ${certificate.radius.toFixed(4)}: nothing is guaranteed there.`,
      `Covers ${SUBJECT.average}. Rests on: ${certificate.basis}.`);
      certificate.inside = inside;
      at("attacked").hidden = false;
    },
    waiting() {},
    average(event) {
      const certificate = current;
      const same = event.class === certificate.class, against = certificate.inside && event.class !== null && !same;
      const kind = event.class === null ? "" : same ? "good" : certificate.inside ? "bad" : "care";
      let text = event.class === null
        ? `The average was tested at the attacked image and abstains: ${count(event.n)} samples do not decide.`
        : `The average was tested at the attacked image: it says “${name(event.class)}”${same ? ", as before" : ""}.`;
      if (against) text += ` This contradicts the certificate, which should happen with probability at most ${2 * facts.alpha}.`;
      finding(kind, text, `Covers ${SUBJECT[event.subject]}. Rests on: ${event.basis}.`);
    },
  };

  at("attacking").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = at("attacking").querySelector(".main"), item = current;
    button.disabled = true;
    complain(at("attack-message"), "");
    const eps = encodeURIComponent(at("distance").value);
    try {
      await study(`/api/attack?eps=${eps}`, item.file, new AbortController().signal, (e) => { if (item === current) attacked[e.kind](e); });
    } catch (error) {
      if (item === current) complain(at("attack-message"), error.message);
    }
    button.disabled = false;
  });
  at("to-radius").addEventListener("click", () => {
    const radius = facts.sigma === null ? current.events.image.deterministic.radius : current.radius;
    const inside = Math.max(0.01, Math.floor(1000 * radius) / 1000);
    [at("slide"), at("distance")].forEach((field) => { field.value = inside; });
  });
  at("slide").addEventListener("input", () => { at("distance").value = at("slide").value; });
  at("distance").addEventListener("input", () => { at("slide").value = at("distance").value; });

  if (facts.sigma !== null) at("stop").addEventListener("click", () => {
    current.abort.abort();
    happened(current, { kind: "stopped" });
  });

  const press = (pressed) => document.querySelectorAll(".example").forEach((b) => b.setAttribute("aria-pressed", b === pressed));
  at("file").addEventListener("change", () => {
    press(null);
    if (at("file").files.length) take([...at("file").files]);
    at("file").value = "";
  });
  document.querySelectorAll(".example").forEach((button) => button.addEventListener("click", async () => {
    press(button);
    try {
      take([await (await fetch(button.querySelector("img").src)).blob()]);
    } catch {
      complain(at("message"), "The server does not answer. Is it still running?");
    }
  }));
  const drop = at("drop");
  ["dragover", "dragenter"].forEach((kind) => document.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); }));
  ["dragleave", "drop"].forEach((kind) => document.addEventListener(kind, () => drop.classList.remove("over")));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    press(null);
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
    else complain(at("message"), "Expected an image file, got something else; drop a file.");
  });
})();
