"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg", facts = JSON.parse(document.getElementById("facts").textContent);
  const at = (id) => document.getElementById(id), name = (c) => facts.names[c];
  const element = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
  const percent = (p) => p > 0.9995 ? "> 99.9\u00a0%" : `${(100 * p).toFixed(1)}\u00a0%`;
  const count = (n) => n.toLocaleString("en");
  const SUBJECT = { network: "the network in one pass", average: "the Gaussian average" };
  let image = null, running = null, certificate = null;

  const say = (where, text) => { if (where.textContent !== text) where.textContent = text; };
  const complain = (where, text) => { where.textContent = text; where.hidden = !text; };

  /* Passes the events of a study to `tell` as they arrive; throws a one-line error if it is refused or interrupted. */
  async function study(address, body, signal, tell) {
    let answer;
    try {
      answer = await fetch(address, { method: "POST", body, signal });
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
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const event = JSON.parse(line);
          if (event.kind === "error") throw new Error(event.message);
          last = event.kind;
          tell(event);
        }
      }
    } catch (error) {
      if (signal.aborted) return false;
      throw error instanceof TypeError ? new Error("The connection to the server broke off.") : error;
    }
    if (last !== "done" && last !== "average") throw new Error("The server stopped before the end.");
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
    at("chart").replaceChildren(...parts);
  }

  const number = (title, claim) => {
    const row = element("div");
    row.append(element("dt", title), element("dd", claim.radius.toFixed(4)),
      element("dd", `Covers ${SUBJECT[claim.subject]}. Rests on: ${claim.basis}.`, "about"));
    return row;
  };

  const shown = {
    image(event) {
      at("seen").src = at("clean").src = event.data;
      bars(at("top"), event.top.map(([c, p]) => [name(c), percent(p), p]));
      const rows = [number("L-bound", event.l_bound)];
      rows[0].lastChild.textContent += " Nothing checks this.";
      if (event.calibrated) rows.unshift(number("Calibrated radius", event.calibrated));
      at("numbers").replaceChildren(...rows);
      certificate.onePass = event.top[0][0];
      at("results").hidden = false;
    },
    copies(event) {
      at("noisy").replaceChildren(...event.copies.map(([data, c]) => {
        const figure = element("figure", "", c === certificate.onePass ? "" : "other");
        figure.append(Object.assign(element("img"), { src: data, alt: "A noisy copy" }), element("figcaption", name(c)));
        return figure;
      }));
    },
    radius(event) {
      Object.assign(certificate, event);
      certificate.points.push([event.n, event.radius]);
      at("radius").textContent = event.abstain ? "none yet" : event.radius.toFixed(4);
      at("radius").classList.toggle("none", event.abstain);
      const other = event.class === certificate.onePass ? "" : ` In one pass the network says “${name(certificate.onePass)}”; nothing is certified about that class.`;
      say(at("verdict"), (event.abstain
        ? `The samples do not yet show that the average says “${name(event.class)}”.`
        : `Within this distance the average says “${name(event.class)}”.`) + other);
      bars(at("counts"), event.counts.map(([c, k]) => [name(c), `${count(k)} of ${count(event.n)}`, k / event.n]));
      at("state").textContent = `${count(event.n)} samples`;
      draw(certificate.points);
    },
    waiting(event) {
      at("state").textContent = event.present > 1 ? `Sharing the network with ${event.present - 1} others …` : "Computing …";
    },
    done() {
      at("state").textContent = `Done after ${count(certificate.n)} samples.`;
      if (certificate.abstain) say(at("verdict"), "The average abstains: the samples do not show which class is the most frequent. Nothing is certified.");
    },
  };

  const finished = () => { at("stop").hidden = true; at("certificate").removeAttribute("aria-busy"); };

  async function certify(file) {
    if (running) running.abort();
    complain(at("message"), "");
    if (file.size > facts.mostBytes) {
      complain(at("message"), `Expected at most ${facts.mostBytes / 1e6} MB, got ${(file.size / 1e6).toFixed(1)} MB; make the image smaller.`);
      return;
    }
    const mine = running = new AbortController();
    image = file;
    certificate = { points: [], abstain: true, radius: 0, n: 0 };
    at("results").hidden = at("attacked").hidden = true;
    complain(at("attack-message"), "");
    at("radius").textContent = "…";
    at("verdict").textContent = at("state").textContent = "";
    at("counts").replaceChildren();
    draw([]);
    at("stop").hidden = false;
    at("certificate").setAttribute("aria-busy", "true");
    try {
      await study("/certify", file, mine.signal, (event) => { if (mine === running) shown[event.kind](event); });
    } catch (error) {
      if (mine === running) complain(at("message"), error.message);
    }
    if (mine === running) finished();
  }

  const finding = (kind, text, about) => {
    const row = element("li", text, kind);
    row.append(element("small", about));
    at("findings").append(row);
  };

  const attacked = {
    attack(event) {
      const inside = !certificate.abstain && event.distance <= certificate.radius;
      at("adversarial").src = event.image;
      at("difference").src = event.difference;
      at("clean-says").textContent = `one pass: ${name(event.before)}`;
      at("difference-says").textContent = `difference, ${event.amplified.toPrecision(2)}×, distance ${event.distance.toFixed(4)}`;
      at("adversarial-says").textContent = `one pass: ${name(event.class)} (${percent(event.probability)})`;
      at("findings").replaceChildren();
      finding(event.success ? "bad" : "", event.success
        ? `The network in one pass is fooled at distance ${event.distance.toFixed(4)}: “${name(event.before)}” became “${name(event.class)}”.`
        : `The attack failed: in one pass it is still “${name(event.class)}” at distance ${event.distance.toFixed(4)}.`,
      `Covers ${SUBJECT[event.subject]}. Rests on: ${event.basis}.`);
      if (!certificate.abstain) finding(inside ? "good" : "", inside
        ? `This is inside the certified radius ${certificate.radius.toFixed(4)}: the average still says “${name(certificate.class)}” there.`
        : `This is outside the certified radius ${certificate.radius.toFixed(4)}: nothing is guaranteed there.`,
      `Covers ${SUBJECT.average}. Rests on: ${certificate.basis}.`);
      certificate.inside = inside;
      at("attacked").hidden = false;
    },
    waiting() {},
    average(event) {
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
    const button = at("attacking").querySelector(".main"), file = image;
    button.disabled = true;
    complain(at("attack-message"), "");
    const eps = encodeURIComponent(at("distance").value);
    try {
      await study(`/attack?eps=${eps}`, file, new AbortController().signal, (e) => { if (file === image) attacked[e.kind](e); });
    } catch (error) {
      if (file === image) complain(at("attack-message"), error.message);
    }
    button.disabled = false;
  });
  at("to-radius").addEventListener("click", () => {
    const inside = Math.max(0.01, Math.floor(1000 * certificate.radius) / 1000);
    [at("slide"), at("distance")].forEach((field) => { field.value = inside; });
  });
  at("slide").addEventListener("input", () => { at("distance").value = at("slide").value; });
  at("distance").addEventListener("input", () => { at("slide").value = at("distance").value; });

  at("stop").addEventListener("click", () => {
    running.abort();
    at("state").textContent = `Stopped after ${count(certificate.n)} samples; the radius is valid.`;
    finished();
  });

  const press = (pressed) => document.querySelectorAll(".example").forEach((b) => b.setAttribute("aria-pressed", b === pressed));
  at("file").addEventListener("change", () => {
    press(null);
    if (at("file").files.length) certify(at("file").files[0]);
    at("file").value = "";
  });
  document.querySelectorAll(".example").forEach((button) => button.addEventListener("click", async () => {
    press(button);
    try {
      certify(await (await fetch(button.querySelector("img").src)).blob());
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
    if (event.dataTransfer.files.length) certify(event.dataTransfer.files[0]);
    else complain(at("message"), "Expected an image file, got something else; drop a file.");
  });
})();
