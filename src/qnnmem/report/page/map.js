// The memory map: steps to the right, addresses upwards, every tensor a box.
// Data stand in a JSON element of the figure; nothing of them is ever read as markup.
(() => {
"use strict";
const POOLS = ["scratch", "io", "persistent"];
const GAP = 0.1; // part of the height between scratch and persistent memory
const number = (value) => value.toLocaleString("en-US");

function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    fill: POOLS.map((pool) => get(`--${pool}`)), edge: POOLS.map((pool) => get(`--${pool}-edge`)),
    paper: get("--paper"), ink: get("--ink"), faint: get("--faint"), line: get("--line"), peak: get("--peak"), accent: get("--accent"),
  };
}

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

class MemoryMap {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.canvas = figure.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.told = figure.querySelector(".told");
    this.search = figure.querySelector("input");
    const { above, tallest } = this.data; // persistent and scratch; maps that are compared are equally tall
    this.lift = Math.ceil(Math.max(tallest, above, 1) * GAP) + tallest;
    this.top = above ? this.lift + above : Math.max(tallest, 1);
    this.boxes = this.data.boxes.map(([pool, offset, size, lower, upper], at) => {
      const y = pool === 2 ? this.lift + offset : offset;
      return { at, pool, offset, size, lower, upper, y, name: this.data.names[at] };
    });
    this.byTime = [...this.boxes].sort((a, b) => a.lower - b.lower || a.y - b.y);
    this.found = new Set();
    this.chosen = this.hovered = null;
    this.colours = colours();
    this.reset();
    this.listen();
    this.resize();
  }

  reset() {
    const { first, last } = this.data;
    const wide = Math.max(last - first, 1);
    this.view = { x0: first - wide * 0.01, x1: last + wide * 0.01, y0: -this.top * 0.05, y1: this.top * 1.09 };
    this.whole = { ...this.view };
    this.draw();
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = colours(); this.stale = true; this.draw(); });
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
        this.pan(-dx / this.width, dy / this.height);
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
    for (const button of this.figure.querySelectorAll("[data-box]"))
      button.addEventListener("click", () => this.choose(this.boxes[Number(button.dataset.box)], true));
    this.figure.querySelector("[data-all]").addEventListener("click", () => this.reset());
    for (const button of this.figure.querySelectorAll("[data-zoom]"))
      button.addEventListener("click", () => this.zoom(button.dataset.zoom === "in" ? 0.7 : 1 / 0.7));
  }

  key(event) {
    const { byTime } = this;
    const at = this.chosen ? byTime.indexOf(this.chosen) : -1;
    const keys = {
      ArrowLeft: () => this.pan(-0.1, 0), ArrowRight: () => this.pan(0.1, 0),
      ArrowUp: () => this.pan(0, 0.1), ArrowDown: () => this.pan(0, -0.1),
      "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25),
      0: () => this.reset(), Home: () => this.reset(), Escape: () => this.choose(null),
      n: () => this.choose(byTime[(at + 1) % byTime.length], true),
      p: () => this.choose(byTime[(at - 1 + byTime.length) % byTime.length], true),
      "/": () => this.search.focus(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || !byTime.length) return;
    event.preventDefault();
    keys[event.key]();
  }

  look(words) {
    const wanted = words.trim().toLowerCase();
    this.found = new Set(wanted ? this.boxes.filter((box) => this.names(box).some((name) => name.toLowerCase().includes(wanted))) : []);
    if (wanted) this.told.textContent = `${number(this.found.size)} of ${number(this.boxes.length)} tensors; Enter goes from one to the next`;
    else this.tell(this.chosen);
    this.stale = true;
    this.draw();
  }

  names(box) { return [box.name, ...(this.data.aliases[box.at] || [])]; }

  choose(box, goThere) {
    this.chosen = box || null;
    if (box && goThere) this.show(box);
    this.tell(this.chosen);
    this.draw();
  }

  show(box) { // moves the view only if the box is not in it
    const { view } = this;
    const wide = view.x1 - view.x0, tall = view.y1 - view.y0;
    const x = (box.lower + box.upper) / 2, y = box.y + box.size / 2;
    if (x < view.x0 || x > view.x1) { view.x0 = x - wide / 2; view.x1 = x + wide / 2; }
    if (y < view.y0 || y > view.y1) { view.y0 = y - tall / 2; view.y1 = y + tall / 2; }
  }

  tell(box) {
    if (!box) { this.told.textContent = this.told.dataset.hint; return; }
    const { data } = this;
    const op = data.ops[box.lower] || "";
    const also = data.aliases[box.at] || [];
    const name = document.createElement("strong");
    name.textContent = box.name;
    const parts = [
      `: ${number(box.size)} bytes of ${POOLS[box.pool]} at ${number(box.offset)}`,
      `steps ${number(box.lower)} to ${number(box.upper - 1)}`,
      box.lower < 0 || !op ? "" : `made by ${op}`,
      also.length ? `shares memory with ${also.slice(0, 12).join(", ")}${also.length > 12 ? " ..." : ""}` : "",
      data.peak && box.lower <= data.peak.step && data.peak.step < box.upper && box.pool < 2 ? "alive at the peak" : "",
    ];
    this.told.replaceChildren(name, parts.filter(Boolean).join("; "));
  }

  boxAt(px, py) {
    const x = this.view.x0 + (px / this.width) * (this.view.x1 - this.view.x0);
    const y = this.view.y1 - (py / this.height) * (this.view.y1 - this.view.y0);
    return this.boxes.find((box) => box.lower <= x && x < box.upper && box.y <= y && y < box.y + box.size) || null;
  }

  pan(dx, dy) {
    const { view } = this;
    const x = dx * (view.x1 - view.x0), y = dy * (view.y1 - view.y0);
    view.x0 += x; view.x1 += x; view.y0 += y; view.y1 += y;
    this.draw();
  }

  zoom(by, px = this.width / 2, py = this.height / 2, onlyTime = false) {
    const { view, whole } = this;
    const wide = view.x1 - view.x0;
    if ((by < 1 && wide * by < 0.5) || (by > 1 && wide * by > 4 * (whole.x1 - whole.x0))) return;
    const x = view.x0 + (px / this.width) * wide;
    const y = view.y1 - (py / this.height) * (view.y1 - view.y0);
    view.x0 = x - (x - view.x0) * by; view.x1 = x + (view.x1 - x) * by;
    if (!onlyTime) { view.y0 = y - (y - view.y0) * by; view.y1 = y + (view.y1 - y) * by; }
    this.draw();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth || 1;
    this.height = this.canvas.clientHeight || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.stale = true;
    this.draw();
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
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
    made.canvas.width = this.canvas.width * 2;
    made.canvas.height = this.canvas.height * 2;
    const pen = made.canvas.getContext("2d"), ratio = this.canvas.width / this.width;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawBoxes(pen, made, this.height * 2);
    this.stale = false;
    this.sheet = made;
    return made;
  }

  drawBoxes(pen, area, height) {
    const { sx, sy } = area, c = this.colours, dim = this.found.size > 0;
    for (let pool = 0; pool < POOLS.length; pool++) {
      pen.fillStyle = c.fill[pool];
      pen.strokeStyle = c.edge[pool];
      pen.lineWidth = 1;
      const slivers = []; // what is narrower than a pixel, by column: thousands become a few
      for (const box of this.boxes) {
        if (box.pool !== pool || box.upper < area.x0 || box.lower > area.x1 || box.y > area.y1 || box.y + box.size < area.y0) continue;
        const x = (box.lower - area.x0) * sx, w = (box.upper - box.lower) * sx, h = box.size * sy;
        const y = height - (box.y - area.y0) * sy - h, isFound = dim && this.found.has(box);
        if (w < 1.5 && !isFound) {
          (slivers[Math.max(0, Math.floor(x))] ||= []).push([Math.floor(y), Math.ceil(y + Math.max(h, 0.6))]);
          continue;
        }
        pen.globalAlpha = dim && !isFound ? 0.22 : 1;
        pen.fillRect(x, y, Math.max(w, isFound ? 2 : 0.6), Math.max(h, isFound ? 2 : 0.6));
        if (w > 3 && h > 3) pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
        if (w > 60 && h > 13) area.named.push(box);
      }
      pen.globalAlpha = dim ? 0.22 : 1;
      fillColumns(pen, slivers);
    }
  }

  paint() {
    const { pen, view, width, height, data } = this;
    const c = this.colours;
    const sx = width / (view.x1 - view.x0), sy = height / (view.y1 - view.y0);
    const X = (x) => (x - view.x0) * sx, Y = (y) => height - (y - view.y0) * sy;
    pen.clearRect(0, 0, width, height);
    const sheet = this.sheetFor(sx, sy);
    const ratio = this.canvas.width / width, whole = (at) => Math.round(at * ratio) / ratio; // dot on dot
    pen.drawImage(sheet.canvas, whole(X(sheet.x0)), whole(Y(sheet.y1)), sheet.canvas.width / ratio, sheet.canvas.height / ratio);
    for (const box of sheet.named) {
      const h = box.size * sy;
      this.label(box, X(box.lower), Y(box.y) - h, (box.upper - box.lower) * sx, h);
    }
    if (data.bound && data.bound < data.scratch) this.across(Y(data.bound), c.faint, `lower bound ${number(data.bound)}`, [2, 3], true);
    this.across(Y(data.scratch), c.ink, `scratch ${number(data.scratch)}${data.bound === data.scratch ? ", the lower bound" : ""}`, []);
    if (data.budget && data.budget !== data.scratch) this.across(Y(data.budget), c.peak, `budget ${number(data.budget)}`, [5, 3], data.budget < data.scratch && Y(data.budget) - Y(data.scratch) < 18);
    if (data.persistent) this.across(Y(this.lift), c.faint, `persistent ${number(data.persistent)}`, [], true, true);
    if (data.peak) this.down(X(data.peak.step + 0.5), c.peak, `peak, step ${number(data.peak.step)}`);
    this.scales(X, Y, sx, sy); // over the lines, so that none strikes a number out
    for (const [box, colour] of [[this.hovered, c.ink], [this.chosen, c.peak]]) {
      if (!box) continue;
      const h = Math.max(box.size * sy, 3);
      pen.strokeStyle = colour; pen.lineWidth = 2.5;
      pen.strokeRect(X(box.lower), Y(box.y) - h, Math.max((box.upper - box.lower) * sx, 3), h);
    }
    this.painted = (this.painted || 0) + 1;
  }

  scales(X, Y, sx, sy) { // steps below, addresses at the right, as many as there is room for
    const { pen, view, width, height, data } = this;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.colours.faint;
    const each = roundStep(90 / sx);
    const from = Math.ceil(Math.max(view.x0, data.first) / each) * each + 0; // no -0
    for (let step = from; step < Math.min(view.x1, data.last); step += each) {
      const words = step === from ? `step ${number(step)}` : number(step);
      this.words(words, X(step + 0.5) - pen.measureText(words).width / 2, height - 5);
    }
    let every = 64;
    while (every * sy < 44) every *= 2;
    for (let at = Math.max(0, Math.ceil(view.y0 / every) * every); at <= Math.min(view.y1, data.tallest); at += every) {
      if (Math.abs(Y(at) - Y(data.scratch)) < 12 && at !== data.scratch) continue;
      this.words(number(at), width - 6 - pen.measureText(number(at)).width, Y(at) + 4);
    }
  }

  label(box, x, y, w, h) {
    const { pen, width } = this;
    const left = Math.max(x, 0), room = Math.min(x + w, width) - left - 8;
    if (room < 40 || y > this.height || y + h < 0) return;
    pen.save();
    pen.fillStyle = this.colours.ink;
    pen.font = "12px system-ui, sans-serif";
    const most = Math.floor(room / 6.6);
    const words = box.name.length > most ? `…${box.name.slice(-Math.max(most - 1, 1))}` : box.name;
    pen.fillText(words, left + 4, y + Math.min(h / 2 + 4, h - 3));
    pen.restore();
  }

  across(y, colour, words, dashes, isBelow, isRight) {
    const { pen, width, height } = this;
    if (y < 0 || y > height) return;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1;
    pen.setLineDash(dashes);
    pen.beginPath(); pen.moveTo(0, y); pen.lineTo(width, y); pen.stroke();
    pen.setLineDash([]);
    pen.font = "12px system-ui, sans-serif";
    this.words(words, isRight ? width - 6 - pen.measureText(words).width : 6, isBelow ? y + 13 : y - 4);
  }

  down(x, colour, words) {
    const { pen, width, height } = this;
    if (x < 0 || x > width) return;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 3]);
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke();
    pen.setLineDash([]);
    pen.font = "600 12px system-ui, sans-serif";
    const wide = pen.measureText(words).width;
    this.words(words, x + 6 + wide > width ? x - 6 - wide : x + 6, 12);
  }

  words(words, x, y) { // readable on any box
    const { pen } = this;
    pen.save();
    pen.strokeStyle = this.colours.paper; pen.lineWidth = 4; pen.lineJoin = "round";
    pen.strokeText(words, x, y);
    pen.restore();
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
})();
