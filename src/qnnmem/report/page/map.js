// The memory map: steps to the right, addresses upwards, every tensor a box.
// Data stand in a JSON element of the figure; nothing of them is ever read as markup.
// Words stand in the margins around the plot, each beside its line, and never over each other.
(() => {
"use strict";
const POOLS = ["scratch", "io", "persistent"];
const GAP = 0.1; // part of the height between scratch and persistent memory
const TOP = 22, BOTTOM = 24, LINE = 13; // pixels of the margins, and of a line of words
const KINDS = 7; // op types with a colour of their own
const LIVES = [1, 2, 4, 16, 64, Infinity]; // steps
const number = (value) => value.toLocaleString("en-US");
const sum = (values) => values.reduce((one, other) => one + other, 0);

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < 4) { value /= 1024; at += 1; }
  const hundredths = value * 100, even = 2 * Math.round(hundredths / 2); // a half as Python rounds it
  const rounded = Math.abs(hundredths % 1) === 0.5 ? even : Math.round(hundredths);
  return `${at ? (rounded / 100).toFixed(2).replace(/\.?0+$/, "") : value} ${units[at]}`;
}

function make(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

const SVG = (() => { // the name of its namespace, which is an address: a page shall hold none
  const made = document.createElement("template");
  made.innerHTML = "<svg></svg>";
  return made.content.firstChild.namespaceURI;
})();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  return {
    isDark, pools: POOLS.map((pool) => [get(`--${pool}`), get(`--${pool}-edge`)]),
    paper: get("--paper"), ink: get("--ink"), faint: get("--faint"), line: get("--line"), peak: get("--peak"), accent: get("--accent"),
    from: get("--io-edge"), to: get("--persistent-edge"),
  };
}
// Light insides under dark words, or the other way round; edges of the same hue.
const hue = (at, isDark) => (isDark ? [`hsl(${at} 55% 26%)`, `hsl(${at} 70% 70%)`] : [`hsl(${at} 75% 80%)`, `hsl(${at} 70% 30%)`]);
const shade = (part, isDark) => (isDark ? [`hsl(205 70% ${14 + 22 * part}%)`, "hsl(205 80% 72%)"] : [`hsl(205 85% ${94 - 30 * part}%)`, "hsl(205 90% 28%)"]);

function roundStep(least) { // 1, 2, 5, 10, 20, 50 ...
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((by) => by * power).find((one) => one >= least) || 1;
}

function fillColumns(pen, columns) { // stretches that touch are one
  columns.forEach((stretches, x) => {
    stretches.sort((a, b) => a[0] - b[0]);
    let [from, to] = stretches[0];
    for (const [top, bottom] of stretches) {
      if (top > to) { pen.fillRect(x, from, 1, to - from); from = top; to = bottom; } else to = Math.max(to, bottom);
    }
    pen.fillRect(x, from, 1, to - from);
  });
}

// Draws what a canvas would as the text of an SVG file.
class SvgPen {
  constructor(pen, width, height) {
    Object.assign(this, { pen, width, height, out: [], path: [], states: [], dashes: [], globalAlpha: 1, lineWidth: 1, groups: 0 });
  }
  escape(words) { return String(words).replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udfff](?![\udc00-\udfff])/g, "?"); }
  put(name, values, words) {
    const given = Object.entries(values).map(([key, value]) => ` ${key}="${typeof value === "number" ? Number(value.toFixed(2)) : this.escape(value)}"`).join("");
    this.out.push(words === undefined ? `<${name}${given}/>` : `<${name}${given}>${this.escape(words)}</${name}>`);
  }
  get inside() { return { fill: this.fillStyle, opacity: this.globalAlpha }; }
  get edge() { return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-dasharray": this.dashes.join(" ") || "none", opacity: this.globalAlpha }; }
  fillRect(x, y, width, height) { this.put("rect", { x, y, width, height, ...this.inside }); }
  strokeRect(x, y, width, height) { this.put("rect", { x, y, width, height, ...this.edge }); }
  fillText(words, x, y) { this.put("text", { x, y, style: `font: ${this.font}`, ...this.inside }, words); }
  measureText(words) { this.pen.font = this.font; return this.pen.measureText(words); }
  setLineDash(dashes) { this.dashes = dashes; }
  beginPath() { this.path = []; }
  moveTo(x, y) { this.path.push(`M${x.toFixed(2)} ${y.toFixed(2)}`); }
  lineTo(x, y) { this.path.push(`L${x.toFixed(2)} ${y.toFixed(2)}`); }
  rect(x, y, width, height) { this.box = { x, y, width, height }; }
  stroke() { this.put("path", { d: this.path.join(""), ...this.edge }); }
  save() { const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, dashes, groups } = this; this.states.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, dashes, groups }); }
  restore() {
    const state = this.states.pop();
    for (; this.groups > state.groups; this.groups--) this.out.push("</g>");
    Object.assign(this, state);
  }
  clip() { // all clips are of the plot
    this.out.push("<clipPath id=\"plot\">"); this.put("rect", this.box); this.out.push("</clipPath><g clip-path=\"url(#plot)\">");
    this.groups += 1;
  }
  get text() { return `<svg xmlns="${SVG}" viewBox="0 0 ${this.width} ${this.height}" width="${this.width}" height="${this.height}">\n${this.out.join("\n")}\n</svg>\n`; }
}

class MemoryMap {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.canvas = figure.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.told = figure.querySelector(".told");
    this.near = figure.querySelector(".near");
    this.search = figure.querySelector("input");
    this.plot = figure.querySelector(".plot");
    const { above, tallest } = this.data; // persistent and scratch; maps that are compared are equally tall
    this.lift = Math.ceil(Math.max(tallest, above, 1) * GAP) + tallest;
    const budget = this.data.budget || 0; // in the picture, too, where it is near
    this.top = above ? this.lift + above : Math.max(tallest, budget < 1.5 * tallest ? budget : 0, 1);
    this.boxes = this.data.boxes.map(([pool, offset, size, lower, upper], at) => {
      const y = pool === 2 ? this.lift + offset : offset;
      return { at, pool, offset, size, lower, upper, y, name: this.data.names[at], reads: this.data.reads[at] || [] };
    });
    this.byTime = [...this.boxes].sort((a, b) => a.lower - b.lower || a.y - b.y);
    this.madeAt = new Map();
    this.readAt = new Map();
    const add = (map, step, box) => { if (map.has(step)) map.get(step).push(box); else map.set(step, [box]); };
    for (const box of this.boxes) {
      add(this.madeAt, box.lower, box);
      for (const step of box.reads) add(this.readAt, step, box);
    }
    this.found = new Set();
    this.off = new Set(); // numbers of kinds in the legend that were switched off
    this.chosen = this.hovered = this.step = null;
    this.colours = colours();
    this.colourBy("pool");
    this.reset();
    this.listen();
    this.resize();
  }

  reset() {
    const [from, to] = this.data.view;
    const wide = Math.max(to - from, 1);
    this.view = { x0: from - wide * 0.01, x1: to + wide * 0.01, y0: 0, y1: this.top * 1.04 };
    this.whole = { ...this.view };
    this.draw();
  }

  // ---- what colours mean ----
  colourBy(choice) {
    const { isDark, pools } = this.colours;
    this.choice = choice;
    if (choice === "pool") {
      const used = POOLS.map((_, at) => at).filter((at) => this.boxes.some((box) => box.pool === at));
      this.kinds = used.map((at) => ({ name: POOLS[at], paint: pools[at], holds: (box) => box.pool === at }));
    } else if (choice === "op") {
      const sizes = new Map();
      for (const box of this.boxes) sizes.set(this.typeOf(box), (sizes.get(this.typeOf(box)) || 0) + box.size);
      const names = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || (a < b ? -1 : 1));
      const own = names.slice(0, names.length > KINDS + 1 ? KINDS : KINDS + 1);
      this.kinds = own.map((name, at) => ({ name, paint: hue((205 + at * 137) % 360, isDark), holds: (box) => this.typeOf(box) === name }));
      if (names.length > own.length) this.kinds.push({ name: `${names.length - own.length} other types`, paint: [this.colours.line, this.colours.faint], holds: (box) => !own.includes(this.typeOf(box)) });
    } else {
      const largest = Math.max(...this.boxes.map((box) => box.size), 1);
      const parts = choice === "life" ? LIVES : [largest / 64, largest / 16, largest / 4, largest];
      const of = choice === "life" ? (box) => box.upper - box.lower : (box) => box.size;
      this.kinds = parts.map((most, at) => {
        const least = at ? parts[at - 1] : 0;
        const steps = most === least + 1 || most === 1 ? `${most} step${most === 1 ? "" : "s"}` : most === Infinity ? `more than ${least} steps` : `${least + 1} to ${most} steps`;
        const sizes = at ? `over ${bytes(Math.floor(least))}` : `to ${bytes(Math.floor(most))}`;
        return { name: choice === "life" ? steps : sizes, paint: shade(at / (parts.length - 1), isDark), holds: (box) => of(box) > least && of(box) <= most };
      }).filter((kind) => this.boxes.some(kind.holds));
    }
    for (const kind of this.kinds) kind.boxes = [];
    for (const box of this.boxes) {
      box.kind = this.kinds.findIndex((kind) => kind.holds(box));
      this.kinds[box.kind]?.boxes.push(box);
    }
    this.off.clear();
    this.legend();
    this.stale = true;
    this.draw();
  }

  typeOf(box) { // "conv1 (Conv)" is an op and its type
    const op = box.lower < 0 ? "" : this.data.ops[box.lower] || "";
    return /\(([^()]*)\)$/.exec(op)?.[1] || op || "input";
  }

  legend() {
    const place = this.figure.querySelector(".legend");
    place.replaceChildren(...this.kinds.map((kind, at) => {
      const spot = document.createElementNS(SVG, "svg");
      const rect = document.createElementNS(SVG, "rect");
      for (const [key, value] of [["width", 12], ["height", 12], ["fill", kind.paint[0]], ["stroke", kind.paint[1]]]) rect.setAttribute(key, value);
      for (const [key, value] of [["width", 12], ["height", 12], ["aria-hidden", "true"]]) spot.setAttribute(key, value);
      spot.append(rect);
      const button = make("button", { type: "button", class: "key", "aria-pressed": "true", title: "show or dim" }, spot, kind.name);
      button.addEventListener("click", () => {
        if (!this.off.delete(at)) this.off.add(at);
        button.setAttribute("aria-pressed", String(!this.off.has(at)));
        this.stale = true;
        this.draw();
      });
      return button;
    }));
  }

  // ---- what a reader does ----
  listen() {
    const { canvas, figure } = this;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = colours(); this.colourBy(this.choice); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const by = Math.exp(Math.max(-0.4, Math.min(0.4, event.deltaY * 0.0016)));
      this.zoom(by, event.offsetX, event.offsetY, event.shiftKey);
    }, { passive: false });
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.offsetX, y: event.offsetY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from) {
        const dx = event.offsetX - from.x, dy = event.offsetY - from.y;
        if (!from.moved && Math.hypot(dx, dy) < 4) return;
        this.pan(-dx / this.wide, dy / this.tall);
        from = { x: event.offsetX, y: event.offsetY, moved: true };
        return;
      }
      const over = this.boxAt(event.offsetX, event.offsetY);
      if (over !== this.hovered) { this.hovered = over; this.tell(over || this.chosen); this.draw(); }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && !from.moved) this.choose(this.boxAt(event.offsetX, event.offsetY));
      from = null;
    });
    canvas.addEventListener("pointercancel", () => { from = null; });
    canvas.addEventListener("pointerleave", () => { if (this.hovered) { this.hovered = null; this.tell(this.chosen); this.draw(); } });
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.search.addEventListener("input", () => this.look(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.found.size) {
        const list = this.byTime.filter((box) => this.found.has(box));
        this.choose(list[(list.indexOf(this.chosen) + 1) % list.length], true);
        event.preventDefault();
      }
    });
    figure.addEventListener("click", (event) => {
      const button = event.target.closest("[data-box]");
      if (button) this.choose(this.boxes[Number(button.dataset.box)], true);
    });
    this.plot?.addEventListener("click", (event) => {
      const { left, width } = this.plot.querySelector(".field").getBoundingClientRect();
      const low = Number(this.plot.dataset.low), high = Number(this.plot.dataset.high);
      this.goTo(Math.floor(low + ((event.clientX - left) / width - 0.006) / 0.988 * (high - low)));
    });
    figure.querySelector("[data-all]").addEventListener("click", () => this.reset());
    figure.querySelector("select").addEventListener("change", (event) => this.colourBy(event.target.value));
    for (const button of figure.querySelectorAll("[data-zoom]"))
      button.addEventListener("click", () => this.zoom(button.dataset.zoom === "in" ? 0.7 : 1 / 0.7));
    for (const button of figure.querySelectorAll("[data-save]"))
      button.addEventListener("click", () => this.save(button.dataset.save));
  }

  key(event) {
    const { byTime } = this;
    const at = this.chosen ? byTime.indexOf(this.chosen) : -1;
    const step = this.step ?? this.data.peak?.step ?? 0;
    const keys = {
      ArrowLeft: () => this.pan(-0.1, 0), ArrowRight: () => this.pan(0.1, 0),
      ArrowUp: () => this.pan(0, 0.1), ArrowDown: () => this.pan(0, -0.1),
      "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25),
      0: () => this.reset(), Home: () => this.reset(), Escape: () => this.choose(null),
      n: () => this.choose(byTime[(at + 1) % byTime.length], true),
      p: () => this.choose(byTime[(at - 1 + byTime.length) % byTime.length], true),
      "[": () => this.goTo(step - 1), "]": () => this.goTo(step + 1),
      "/": () => this.search.focus(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || !byTime.length) return;
    event.preventDefault();
    keys[event.key]();
  }

  look(words) {
    const wanted = words.trim().toLowerCase();
    this.found = new Set(wanted ? this.boxes.filter((box) => this.names(box).some((name) => name.toLowerCase().includes(wanted))) : []);
    if (wanted) {
      const first = this.byTime.find((box) => this.found.has(box));
      if (first) this.show(first);
      this.told.textContent = `${number(this.found.size)} of ${number(this.boxes.length)} tensors; Enter goes to the next one`;
    } else this.tell(this.chosen);
    this.stale = true;
    this.draw();
  }

  names(box) { return [box.name, ...(this.data.aliases[box.at] || [])]; }

  choose(box, goThere) {
    this.chosen = box || null;
    this.step = null;
    if (box && goThere) this.show(box);
    for (const one of this.figure.querySelectorAll(".is-chosen")) one.classList.remove("is-chosen");
    for (const one of box ? this.figure.querySelectorAll(`[data-box="${box.at}"]`) : []) (one.closest("tr") || one).classList.add("is-chosen");
    this.tell(this.chosen);
    this.mark(box?.lower, box?.upper);
    this.draw();
  }

  goTo(step) { // all that is alive at a step
    const { first, last } = this.data;
    this.step = Math.max(first, Math.min(last - 1, step));
    this.chosen = null;
    const live = this.boxes.filter((box) => box.pool < 2 && box.lower <= this.step && this.step < box.upper).sort((a, b) => b.size - a.size);
    this.told.textContent = `step ${number(this.step)}${this.data.ops[this.step] ? `, ${this.data.ops[this.step]}` : ""}: ${number(sum(live.map((box) => box.size)))} bytes alive in ${number(live.length)} tensors`;
    this.near.replaceChildren(...live.slice(0, 12).map((box) => this.button(box)), live.length > 12 ? `and ${number(live.length - 12)} more` : "");
    this.mark(this.step, this.step + 1);
    this.draw();
  }

  mark(lower, upper) { // the same steps in the curve of bytes alive
    this.plot?.querySelector(".span")?.remove();
    if (!this.plot || lower === undefined) return;
    const low = Number(this.plot.dataset.low), high = Number(this.plot.dataset.high), scale = 988 / Math.max(high - low, 1);
    const rect = document.createElementNS(SVG, "rect");
    for (const [key, value] of [["class", "span"], ["x", 6 + (lower - low) * scale], ["width", (upper - lower) * scale], ["y", 0], ["height", 150]]) rect.setAttribute(key, value);
    this.plot.querySelector(".field").append(rect);
  }

  show(box) { // moves the view only if the box is not in it
    const { view } = this;
    const wide = view.x1 - view.x0, tall = view.y1 - view.y0;
    const x = (box.lower + box.upper) / 2, y = box.y + box.size / 2;
    if (x < view.x0 || x > view.x1) { view.x0 = x - wide / 2; view.x1 = x + wide / 2; }
    if (y < view.y0 || y > view.y1) { view.y0 = y - tall / 2; view.y1 = y + tall / 2; }
  }

  // The boxes that the op of this one reads, and those that are made of it.
  around(box) {
    const isMade = box.lower >= 0 && this.data.ops[box.lower];
    const from = isMade ? (this.readAt.get(box.lower) || []).filter((other) => other !== box) : [];
    const to = box.reads.flatMap((step) => (this.madeAt.get(step) || []).filter((other) => other !== box));
    return { from, to };
  }

  tell(box) {
    this.near.replaceChildren();
    if (!box) { this.told.textContent = this.told.dataset.hint; return; }
    const { data } = this;
    const op = data.ops[box.lower] || "";
    const also = data.aliases[box.at] || [];
    const name = document.createElement("strong");
    name.textContent = box.name;
    const parts = [
      `: ${number(box.size)} bytes of ${POOLS[box.pool]} at ${number(box.offset)}`,
      data.shapes[box.at] ? `shape ${data.shapes[box.at]}` : "",
      `steps ${number(box.lower)} to ${number(box.upper - 1)}`,
      box.lower < 0 || !op ? "" : `made by ${op}`,
      also.length ? `shares memory with ${also.slice(0, 12).join(", ")}${also.length > 12 ? " ..." : ""}` : "",
      data.peak && box.lower <= data.peak.step && data.peak.step < box.upper && box.pool < 2 ? "alive at the peak" : "",
    ];
    this.told.replaceChildren(name, parts.filter(Boolean).join("; "));
    if (box.reads.length || this.around(box).from.length) this.tellNear(box);
  }

  tellNear(box) { // a small graph: inputs, op, tensor, ops that read it with what they make
    const { from } = this.around(box);
    const some = (list, most) => [...list.slice(0, most).map((one) => this.button(one)), ...(list.length > most ? [`and ${number(list.length - most)} more`] : [])];
    const column = (...inside) => make("div", { class: "column" }, ...inside);
    const op = (step) => make("span", { class: "op" }, this.data.ops[step] || `step ${step}`);
    const readers = box.reads.slice(0, 4).map((step) => make("div", { class: "reader" }, op(step), "→", column(...some((this.madeAt.get(step) || []).filter((one) => one !== box), 4))));
    this.near.replaceChildren(...[
      from.length ? column(...some(from, 6)) : "", from.length ? "→" : "", box.lower >= 0 && this.data.ops[box.lower] ? op(box.lower) : "", box.lower >= 0 ? "→" : "",
      make("strong", { class: "tensor" }, box.name, this.shape(box)), readers.length ? "→" : "", column(...readers, box.reads.length > 4 ? `and ${number(box.reads.length - 4)} more ops` : "")].filter((one) => one !== ""));
  }

  shape(box) { return this.data.shapes[box.at] ? make("small", {}, ` ${this.data.shapes[box.at]}`) : ""; }
  button(box) { return make("button", { type: "button", "data-box": box.at }, box.name, this.shape(box)); }

  boxAt(px, py) {
    if (px < this.left || px > this.left + this.wide) return null;
    const x = this.view.x0 + ((px - this.left) / this.wide) * (this.view.x1 - this.view.x0);
    const y = this.view.y1 - ((py - TOP) / this.tall) * (this.view.y1 - this.view.y0);
    return this.boxes.find((box) => box.lower <= x && x < box.upper && box.y <= y && y < box.y + box.size) || null;
  }

  pan(dx, dy) {
    const { view } = this;
    const x = dx * (view.x1 - view.x0), y = dy * (view.y1 - view.y0);
    view.x0 += x; view.x1 += x; view.y0 += y; view.y1 += y;
    this.draw();
  }

  zoom(by, px = this.left + this.wide / 2, py = TOP + this.tall / 2, onlyTime = false) {
    const { view, whole } = this;
    const wide = view.x1 - view.x0;
    if ((by < 1 && wide * by < 0.5) || (by > 1 && wide * by > 4 * (whole.x1 - whole.x0))) return;
    const x = view.x0 + ((px - this.left) / this.wide) * wide;
    const y = view.y1 - ((py - TOP) / this.tall) * (view.y1 - view.y0);
    view.x0 = x - (x - view.x0) * by; view.x1 = x + (view.x1 - x) * by;
    if (!onlyTime) { view.y0 = y - (y - view.y0) * by; view.y1 = y + (view.y1 - y) * by; }
    this.draw();
  }

  save(form) { // what is in the window now
    const give = (blob) => {
      const link = make("a", { href: URL.createObjectURL(blob), download: `memory-map.${form}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    };
    this.paint();
    if (form === "png") { this.canvas.toBlob(give); return; }
    const pen = new SvgPen(this.pen, this.width, this.height);
    this.scene(pen, false);
    give(new Blob([pen.text], { type: "image/svg+xml" }));
  }

  // ---- drawing ----
  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth || 1;
    this.height = this.canvas.clientHeight || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.left = 68;
    this.wide = Math.max(this.width - this.left - 84, 40);
    this.tall = Math.max(this.height - TOP - BOTTOM, 40);
    this.stale = true;
    this.draw();
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  paint() {
    this.scene(this.pen, true);
    this.painted = (this.painted || 0) + 1;
  }

  // Boxes are drawn once onto a sheet that reaches beyond the window by half of it on each side;
  // as long as the window only moves there, a frame is a copy of that sheet.
  sheetFor(sx, sy) {
    const { view, sheet } = this;
    if (sheet && !this.stale && Math.abs(sheet.sx / sx - 1) < 1e-6 && Math.abs(sheet.sy / sy - 1) < 1e-6 && sheet.x0 <= view.x0 && sheet.x1 >= view.x1
      && sheet.y0 <= view.y0 && sheet.y1 >= view.y1) return sheet;
    const wide = (view.x1 - view.x0) / 2, tall = (view.y1 - view.y0) / 2;
    const made = { sx, sy, x0: view.x0 - wide, x1: view.x1 + wide, y0: view.y0 - tall, y1: view.y1 + tall, named: [] };
    made.canvas = sheet ? sheet.canvas : document.createElement("canvas");
    const ratio = this.canvas.width / this.width;
    made.canvas.width = Math.round(this.wide * 2 * ratio);
    made.canvas.height = Math.round(this.tall * 2 * ratio);
    const pen = made.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawBoxes(pen, made, 0, this.tall * 2);
    this.stale = false;
    this.sheet = made;
    return made;
  }

  drawBoxes(pen, area, left, bottom) {
    const { sx, sy } = area, dim = this.found.size > 0;
    pen.lineWidth = 1;
    for (const [at, kind] of this.kinds.entries()) {
      [pen.fillStyle, pen.strokeStyle] = kind.paint;
      const slivers = []; // what is narrower than a pixel, by column: thousands become a few
      for (const box of kind.boxes) {
        if (box.upper < area.x0 || box.lower > area.x1 || box.y > area.y1 || box.y + box.size < area.y0) continue;
        const x = left + (box.lower - area.x0) * sx, w = (box.upper - box.lower) * sx, h = box.size * sy;
        const y = bottom - (box.y - area.y0) * sy - h, isFound = dim && this.found.has(box);
        if (w < 1.5 && !isFound) {
          (slivers[Math.max(0, Math.floor(x))] ||= []).push([Math.floor(y), Math.ceil(y + Math.max(h, 0.6))]);
          continue;
        }
        pen.globalAlpha = (dim && !isFound) || this.off.has(at) ? 0.22 : 1;
        pen.fillRect(x, y, Math.max(w, isFound ? 2 : 0.6), Math.max(h, isFound ? 2 : 0.6));
        if (w > 3 && h > 3) pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
        if (w > 48 && h > 15) area.named.push(box);
      }
      pen.globalAlpha = dim || this.off.has(at) ? 0.22 : 1;
      fillColumns(pen, slivers);
    }
    pen.globalAlpha = 1;
  }

  scene(pen, usesSheet) {
    const { view, width, height, data, left, wide, tall, colours: c } = this;
    const sx = wide / (view.x1 - view.x0), sy = tall / (view.y1 - view.y0), right = left + wide, floor = TOP + tall;
    const X = (x) => left + (x - view.x0) * sx, Y = (y) => floor - (y - view.y0) * sy;
    this.labels = [];
    pen.setLineDash([]);
    pen.fillStyle = c.paper;
    pen.fillRect(0, 0, width, height);
    const levels = this.levels();
    pen.save();
    pen.beginPath(); pen.rect(left, TOP, wide, tall); pen.clip();
    this.difference(pen, X, Y);
    let area;
    if (usesSheet) {
      area = this.sheetFor(sx, sy);
      const ratio = this.canvas.width / width, whole = (at) => Math.round(at * ratio) / ratio; // dot on dot
      pen.drawImage(area.canvas, whole(X(area.x0)), whole(Y(area.y1)), area.canvas.width / ratio, area.canvas.height / ratio);
    } else {
      area = { ...view, sx, sy, named: [] };
      this.drawBoxes(pen, area, left, floor);
    }
    for (const level of levels) this.stroke(pen, left, Y(level.at), right, Y(level.at), level.colour, level.dashes);
    if (data.peak) this.stroke(pen, X(data.peak.step + 0.5), TOP, X(data.peak.step + 0.5), floor, c.peak, [5, 3], 1.5);
    if (this.step !== null) this.stroke(pen, X(this.step + 0.5), TOP, X(this.step + 0.5), floor, c.accent, [], 1.5);
    for (const box of area.named) this.label(pen, box, X(box.lower), Y(box.y + box.size), (box.upper - box.lower) * sx, box.size * sy);
    const shown = this.hovered || this.chosen, near = shown ? this.around(shown) : { from: [], to: [] };
    for (const [boxes, colour] of [[near.from, c.from], [near.to, c.to], [this.hovered ? [this.hovered] : [], c.ink], [this.chosen ? [this.chosen] : [], c.peak]])
      for (const box of boxes) {
        const h = Math.max(box.size * sy, 3);
        pen.strokeStyle = colour; pen.lineWidth = 2.5;
        pen.strokeRect(X(box.lower), Y(box.y) - h, Math.max((box.upper - box.lower) * sx, 3), h);
      }
    pen.restore();
    pen.strokeStyle = c.line; pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, TOP + 0.5, wide - 1, tall - 1);
    this.margins(pen, levels, X, Y, sx, sy);
  }

  levels() { // lines across, and what stands beside them
    const { data, colours: c } = this, found = [];
    const add = (at, name, size, colour, dashes) => found.push({ at, words: [name, bytes(size)], colour, dashes });
    add(data.scratch, "scratch", data.scratch, c.ink, []);
    if (data.bound && data.bound < data.scratch) add(data.bound, "lower bound", data.bound, c.faint, [2, 3]);
    if (data.budget && data.budget <= this.view.y1) add(data.budget, "budget", data.budget, c.peak, [5, 3]);
    if (data.other && data.other.scratch !== data.scratch) add(data.other.scratch, data.other.name, data.other.scratch, c.accent, [8, 3]);
    if (data.persistent) add(this.lift, "persistent", data.persistent, c.faint, []);
    return found.filter((level) => level.at >= this.view.y0 && level.at <= this.view.y1);
  }

  difference(pen, X, Y) { // what a change saved or cost, against the map beside this one
    const { data, colours: c, left, wide } = this;
    if (!data.other || data.other.scratch === data.scratch) return;
    const top = Y(Math.max(data.scratch, data.other.scratch)), end = Y(Math.min(data.scratch, data.other.scratch));
    const [before, after] = data.other.name === "after" ? [data.scratch, data.other.scratch] : [data.other.scratch, data.scratch];
    pen.fillStyle = after < before ? c.to : c.peak;
    pen.globalAlpha = 0.14;
    pen.fillRect(left, top, wide, end - top);
    pen.globalAlpha = 1;
  }

  stroke(pen, x, y, toX, toY, colour, dashes, width = 1) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.setLineDash(dashes);
    pen.beginPath(); pen.moveTo(x, y); pen.lineTo(toX, toY); pen.stroke();
    pen.setLineDash([]);
  }

  margins(pen, levels, X, Y, sx, sy) {
    const { view, width, data, left, wide, tall, colours: c } = this;
    const right = left + wide, floor = TOP + tall;
    pen.font = "600 12px system-ui, sans-serif";
    if (data.peak && X(data.peak.step + 0.5) >= left && X(data.peak.step + 0.5) <= right) {
      const words = `peak, step ${number(data.peak.step)}`, long = pen.measureText(words).width;
      pen.fillStyle = c.peak;
      this.words(pen, words, Math.max(0, Math.min(width - long, X(data.peak.step + 0.5) - long / 2)), TOP - 7);
    }
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = c.faint;
    const each = roundStep(46 / sx);
    let free = 0;
    for (let step = Math.ceil(Math.max(view.x0, data.first, 0) / each) * each + 0; step < Math.min(view.x1, data.last); step += each) {
      const words = free ? number(step) : `step ${number(step)}`, long = pen.measureText(words).width;
      const x = Math.max(2, X(step + 0.5) - long / 2);
      if (x < free || x + long > width - 2 || X(step + 0.5) > right) continue;
      this.words(pen, words, x, floor + 16);
      free = x + long + 10;
    }
    let every = 64;
    while (every * sy < 34) every *= 2;
    for (const [base, size] of [[0, data.tallest], [this.lift, data.above]])
      for (let at = 0; size && at <= size; at += every) {
        const y = Y(base + at), words = bytes(at);
        if (y < TOP - 1 || y > floor + 1) continue;
        this.stroke(pen, left - 4, y, left, y, c.faint, []);
        this.words(pen, words, left - 7 - pen.measureText(words).width, Math.max(TOP + 8, y + 4));
      }
    const tallest = 2 * LINE + 4;
    let low = -Infinity;
    const placed = [...levels].sort((a, b) => b.at - a.at).map((level) => { low = Math.max(low + tallest, Y(level.at) - LINE, TOP); return { ...level, y: low }; });
    let high = floor;
    for (const level of placed.reverse()) { level.y = Math.min(level.y, high - tallest); high = level.y; }
    for (const level of placed) {
      this.stroke(pen, right, Y(level.at), right + 8, level.y + LINE + 1, level.colour, []);
      pen.fillStyle = level.colour;
      level.words.forEach((words, line) => this.words(pen, words, right + 11, level.y + 10 + line * LINE));
    }
  }

  label(pen, box, x, y, w, h) { // the name inside its box, from its end where it is too long
    const from = Math.max(x, this.left) + 4, to = Math.min(x + w, this.left + this.wide) - 4;
    const middle = (Math.max(y, TOP) + Math.min(y + h, TOP + this.tall)) / 2;
    if (to - from < 40 || middle - 7 < Math.max(y, TOP) || middle + 7 > Math.min(y + h, TOP + this.tall)) return;
    pen.fillStyle = this.colours.ink;
    pen.globalAlpha = this.off.has(box.kind) || (this.found.size && !this.found.has(box)) ? 0.35 : 1;
    pen.font = "12px system-ui, sans-serif";
    let words = box.name;
    if (pen.measureText(words).width > to - from) {
      let most = Math.min(words.length, Math.floor((to - from) / 4));
      while (most > 5 && pen.measureText(`…${words.slice(-most)}`).width > to - from) most -= 1;
      if (most === 5) return;
      words = `…${words.slice(-most)}`;
    }
    this.words(pen, words, from, middle + 4);
    pen.globalAlpha = 1;
  }

  words(pen, words, x, y) { // kept, so that a test can see that none covers another
    const width = pen.measureText(words).width;
    this.labels.push({ words, x, y: y - 9, width, height: 11 });
    pen.fillText(words, x, y);
  }
}

// Maps that came into the document since; those that left it are forgotten.
window.qnnmemDraw = (root = document) => {
  const known = (window.qnnmemMaps || []).filter((map) => map.figure.isConnected);
  const figures = [...root.querySelectorAll("figure.map")].filter((one) => !known.some((map) => map.figure === one));
  window.qnnmemMaps = [...known, ...figures.map((figure) => new MemoryMap(figure))];
};
window.qnnmemDraw();

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const words = button.previousElementSibling.textContent;
  const done = () => { button.textContent = "copied"; };
  const byHand = () => getSelection().selectAllChildren(button.previousElementSibling);
  if (navigator.clipboard) navigator.clipboard.writeText(words).then(done, byHand); else byHand();
});
// A slider over results that were computed: one is shown at a time. Without a script all are.
const showStep = (slider) => {
  const steps = [...slider.closest(".steps").querySelectorAll(".step")];
  steps.forEach((step, at) => { step.hidden = at !== Number(slider.value); });
  slider.setAttribute("aria-valuetext", steps[slider.value].dataset.value);
};
document.querySelectorAll(".steps input").forEach((slider) => { slider.hidden = false; showStep(slider); });
document.addEventListener("input", (event) => { if (event.target.matches(".steps input")) showStep(event.target); });
// A link into a part that is closed opens it.
const openTarget = () => { for (let at = location.hash.length > 1 && document.getElementById(location.hash.slice(1)); at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
addEventListener("hashchange", openTarget);
openTarget();
})();
