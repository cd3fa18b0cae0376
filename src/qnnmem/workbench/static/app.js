// The workbench: files in, jobs under way, results shown. Names from files only ever become text.
import { complete, fill, make, read, suit } from "/static/forms.js";

const $ = (id) => document.getElementById(id);
const SOON = 220; // ms after the last change of a setting
const state = { files: [], results: [], jobs: [], tasks: {}, socs: [], largest: 0, changes: -1 };
const now = { file: null, task: null, options: {}, job: null, result: null, scratch: null, helped: new Set(), uploads: 0, isOpen: false };
let picked = [];

async function call(path, how = {}) {
  let answer;
  try { answer = await fetch(path, how); } catch { throw new Error("the workbench does not answer; is it still running?"); }
  if (answer.ok) return answer;
  let said = `the workbench answered ${answer.status}`;
  try { said = (await answer.json()).error || said; } catch { /* no JSON */ }
  throw Object.assign(new Error(said), { status: answer.status });
}
const ask = async (path, values) => (await call(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(values) })).json();
const tasksOf = (file) => (file?.tasks || []).map((id) => state.tasks[id]);
const taskOf = (file, name) => tasksOf(file).find((task) => task.name === name) || null;
const bytes = (size) => {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (size >= 1024 && at < 3) { size /= 1024; at += 1; }
  return `${at ? size.toFixed(2) : size} ${units[at]}`;
};
const ago = (when) => {
  const seconds = Math.max(0, Date.now() / 1000 - when);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(when * 1000).toISOString().slice(0, 10);
};

// ---- what is said ----
function problem(words) {
  $("problem").textContent = words || "";
  $("problem").hidden = !words;
}
let since = 0; // a compile may say nothing for minutes; its seconds go on
function tick() {
  const seconds = Math.round((Date.now() - since) / 1000);
  $("took").textContent = seconds > 1 ? `${seconds} s` : "";
}
const refused = []; // files that could not be taken, newest first, for the history of this page
function refuse(name, words) {
  refused.unshift({ name, words });
  refused.length = Math.min(refused.length, 20);
  $("refused").textContent = words;
  $("refused").hidden = false;
  $("refused").scrollIntoView({ block: "nearest" });
  drawHistory();
}
function running(job) {
  $("running").hidden = !job;
  if (!job) return;
  $("doing").textContent = job.doing || "";
  since = Date.now() - 1000 * job.seconds;
  tick();
  if (job.fraction === null || job.fraction === undefined) $("bar").removeAttribute("value"); else $("bar").value = job.fraction;
  $("cancel").hidden = !job.id;
}

// ---- the file that is open ----
function openFile(file, taskName, options = {}) {
  if (now.file?.id !== file.id) now.isOpen = false;
  now.file = file;
  now.task = taskOf(file, taskName) || tasksOf(file)[0];
  now.options = options;
  $("welcome").hidden = true;
  $("file").hidden = false;
  $("name").textContent = file.name;
  $("facts").replaceChildren(`${file.kind}, ${bytes(file.size)}`, make("span", { class: "digest" }, `, sha256 ${file.digest}…`));
  document.title = `${file.name} · qnnmem workbench`;
  drawTask();
}
function drawTask() {
  $("tasks").replaceChildren(...tasksOf(now.file).map((task) => {
    const button = make("button", { type: "button", "aria-pressed": String(task === now.task) }, task.title);
    button.addEventListener("click", () => {
      if (task === now.task) return;
      const shared = Object.fromEntries(task.controls.filter((one) => now.options[one.name] !== undefined).map((one) => [one.name, now.options[one.name]]));
      openFile(now.file, task.name, shared);
      $("tasks").querySelector("[aria-pressed=true]").focus();
      clearShown();
      if (task.is_live) request(); else running(null);
    });
    return button;
  }));
  $("tasks").hidden = now.file.tasks.length < 2;
  $("says").textContent = now.task.words;
  fill($("form"), now.task, now.options, state.socs);
  fold();
}
// Settings become a line of chips once there is a result, until a reader opens them.
function fold() {
  const isFolded = now.result !== null && !now.isOpen && $("form").childElementCount > 0;
  const hadFocus = isFolded && $("form").contains(document.activeElement);
  const set = (now.task?.controls || []).filter((one) => now.options[one.name] !== undefined);
  $("chips").hidden = now.result === null || $("form").childElementCount === 0;
  $("form").hidden = isFolded;
  $("says").hidden = now.result !== null;
  $("settings").setAttribute("aria-expanded", String(!isFolded));
  $("settings").textContent = isFolded ? "change settings" : "fold settings";
  const words = (one) => { const value = now.options[one.name]; return value === true ? one.label : `${one.label}: ${Array.isArray(value) ? value.join(" ") : value}`; };
  $("chosen").replaceChildren(...(set.length ? set.map((one) => make("span", { class: "chip" }, words(one))) : [make("span", { class: "faint" }, "default settings")]));
  if (hadFocus) $("settings").focus();
}
function clearShown() {
  now.result = null;
  fold();
  now.scratch = null;
  problem("");
  $("told").replaceChildren();
  $("tools").hidden = $("earlier").hidden = true;
  $("shown").replaceChildren();
  drawHistory();
}

// ---- jobs ----
let timer = 0, asked = 0; // of several requests the last one counts
async function request({ again = false } = {}) {
  clearTimeout(timer);
  if (!now.file) return;
  const turn = ++asked;
  const instead = now.job;
  running({ doing: "asking", fraction: null, seconds: 0 });
  try {
    const job = await ask("/api/jobs", { file: now.file.id, task: now.task.name, options: now.options, again, instead_of: instead });
    if (turn !== asked) return;
    now.job = job.id;
    await follow(job);
  } catch (error) {
    if (turn !== asked) return;
    running(null);
    problem(error.message);
  }
}
async function follow(job) {
  if (job.id !== now.job) return;
  if (job.state === "queued" || job.state === "running") { running(job); return; }
  now.job = null;
  running(null);
  if (job.state === "done") { problem(""); await show(job.result); return; }
  if (job.state === "failed") failed(job);
  else $("told").replaceChildren(make("span", { class: "faint" }, `${job.title} was cancelled`));
}
function failed(job) {
  const known = { dims: "dims", shapes: "shapes", values: "values", states: "states" };
  const found = {};
  for (const [name, value] of job.settings) if (known[name] && taskControl(name)) (found[known[name]] ||= []).push(value);
  const helps = Object.keys(found).length > 0;
  const key = `${job.file} ${job.task}`;
  if (job.is_gone) {
    clearShown();
    $("file").hidden = true;
    $("welcome").hidden = false;
    now.file = null;
  }
  if (helps) {
    for (const [name, values] of Object.entries(found)) {
      const kept = (now.options[name] || []).filter((one) => !values.some((other) => other.slice(0, other.lastIndexOf("=")) === one.slice(0, one.lastIndexOf("="))));
      now.options = { ...now.options, [name]: [...kept, ...values] };
    }
    now.isOpen = now.isOpen || job.is_guess;
    fill($("form"), now.task, now.options, state.socs);
    fold();
    if (!job.is_guess && !now.helped.has(key)) { // sizes that were seen to run are filled in once
      now.helped.add(key);
      request();
      return;
    }
  }
  problem(job.error);
}
const taskControl = (name) => now.task?.controls.some((one) => one.name === name);

// ---- results ----
async function show(number, { focus = false } = {}) {
  const html = await (await call(`/api/results/${number}/shown`)).text();
  const before = now.scratch;
  now.result = number;
  put(html);
  fold();
  const entry = state.results.find((one) => one.id === number) || (await refresh(), state.results.find((one) => one.id === number));
  drawTools(entry);
  const data = window.qnnmemMaps?.[0]?.data;
  now.scratch = entry?.task === "plan" && data ? data.scratch : null;
  tellChange(before, now.scratch, entry);
  drawHistory();
  if (focus) { $("main").focus({ preventScroll: true }); toMain(); }
}
function put(html) {
  const place = $("shown");
  const held = place.querySelector("canvas") === document.activeElement;
  place.innerHTML = html; // made by the server, which escapes; scripts in it would not run
  window.qnnmemDraw(place);
  if (held) place.querySelector("canvas")?.focus();
}
function tellChange(before, after, entry) {
  const said = $("told");
  if (before === null || after === null || before === after) {
    said.replaceChildren(...(entry && before !== null && before === after ? [make("span", { class: "faint" }, `scratch stays at ${after.toLocaleString("en-US")} bytes`)] : []));
    return;
  }
  const part = before ? `${after < before ? "−" : "+"}${(Math.abs(after - before) / before * 100).toFixed(1)} %` : "";
  said.replaceChildren(
    make("span", {}, `scratch ${before.toLocaleString("en-US")} → `), make("b", {}, after.toLocaleString("en-US")),
    " bytes ", make("strong", { class: `badge ${after < before ? "good" : "bad"}` }, part));
}
// The result before, of a file of the same name.
const before = (entry) => state.results.filter((one) => one.id < entry.id && one.name === entry.name && one.schema === entry.schema).sort((one, other) => other.id - one.id)[0];
function drawTools(entry) {
  $("tools").hidden = !entry;
  const last = entry && before(entry);
  $("earlier").hidden = !last;
  if (!entry) return;
  if (last) $("earlier").textContent = `compare with the previous result, ${ago(last.made)}`;
  $("command").textContent = entry.command;
  $("command").parentElement.hidden = !entry.command;
  $("command").nextElementSibling.textContent = "copy";
  $("as-html").href = `/api/results/${entry.id}/report`;
  $("as-json").href = `/api/results/${entry.id}`;
  $("again").hidden = !now.file || entry.file !== now.file.id;
  $("made").replaceChildren(...entry.outputs.map((file, at) => make("a", { href: `/api/results/${entry.id}/made/${at}`, download: true }, `${file.name} (${bytes(file.size)})`)));
}
async function openEntry(entry) {
  asked += 1;
  now.job = null;
  running(null);
  const file = state.files.find((one) => one.id === entry.file);
  const same = file && now.file?.id === file.id && now.task?.name === entry.task;
  if (!same) clearShown();
  problem("");
  if (file && taskOf(file, entry.task)) openFile(file, entry.task, entry.options);
  else {
    now.file = null;
    $("file").hidden = true;
    $("welcome").hidden = true;
    document.title = `${entry.name} · qnnmem workbench`;
  }
  try { await show(entry.id, { focus: true }); } catch (error) { problem(error.message); }
}

// ---- the lists ----
// Only results of one kind have something in common.
function pick(entry, wanted) {
  const alike = picked.filter((id) => id !== entry.id && state.results.find((one) => one.id === id)?.schema === entry.schema);
  picked = wanted ? [...alike, entry.id].slice(-2) : picked.filter((id) => id !== entry.id);
}
const tone = (code) => ({ 0: "good", 1: "bad" }[code] || "open");
function drawHistory() {
  const wanted = $("find").value.trim().toLowerCase();
  const shown = state.results.filter((one) => !wanted || `${one.name} ${one.task} ${one.summary} ${one.command}`.toLowerCase().includes(wanted));
  $("clear").hidden = $("find").hidden = state.results.length === 0;
  picked = picked.filter((id) => state.results.some((one) => one.id === id));
  const focused = document.activeElement?.closest?.("#history [data-key]")?.dataset.key;
  $("nothing").hidden = state.results.length > 0 || refused.length > 0;
  const left = refused.filter((one) => !wanted || `${one.name} ${one.words}`.toLowerCase().includes(wanted)).map((one) => make("li", { class: "refused" },
    make("span", { class: "line" }, make("b", {}, one.name), make("i", { class: "dot bad", "aria-hidden": "true" })), make("span", { class: "said", title: one.words }, one.words)));
  $("history").replaceChildren(...left, ...shown.map((one) => {
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${one.name}, ${one.task}, ${one.summary}`, "data-key": `c${one.id}` });
    box.checked = picked.includes(one.id);
    box.addEventListener("change", () => { pick(one, box.checked); drawHistory(); });
    const button = make("button", { type: "button", class: "entry", "data-key": `e${one.id}`, "aria-current": String(one.id === now.result) },
      make("span", { class: "line" }, make("b", {}, one.name), make("i", { class: `dot ${tone(one.exit_code)}`, "aria-hidden": "true" })),
      make("span", { class: "said", title: one.summary }, `${one.task}: ${one.summary}`),
      make("span", { class: "faint" }, [settings(one), ago(one.made)].filter(Boolean).join(" · ")));
    button.addEventListener("click", () => openEntry(one));
    const drop = make("button", { type: "button", class: "plain drop-entry", "aria-label": `Remove ${one.name}, ${one.task}`, "data-key": `d${one.id}` }, "×");
    drop.addEventListener("click", async () => { await call(`/api/results/${one.id}`, { method: "DELETE" }); await refresh(); });
    return make("li", {}, box, button, drop);
  }));
  if (focused) $("history").querySelector(`[data-key="${focused}"]`)?.focus();
  $("comparing").hidden = state.results.length < 2;
  $("compare").disabled = picked.length !== 2;
  $("picked").textContent = picked.length === 2 ? "two chosen" : picked.length ? `choose one more ${state.results.find((one) => one.id === picked[0]).task}` : "tick two to compare";
}
const settings = (entry) => Object.entries(entry.options).map(([name, value]) => value === true ? name : Array.isArray(value) ? value.join(" ") : `${name} ${value}`).join(", ");

async function compare(before, after) {
  asked += 1;
  try {
    const html = await (await call(`/api/compare?before=${before}&after=${after}`)).text();
    now.file = now.job = null;
    clearShown();
    running(null);
    $("file").hidden = $("welcome").hidden = true;
    put(html);
    drawHistory();
    $("main").focus({ preventScroll: true });
    toMain();
  } catch (error) { problem(error.message); }
}
function drawJobs() {
  const open = state.jobs.filter((job) => (job.state === "running" || job.state === "queued"));
  $("work").hidden = open.length === 0;
  $("jobs").replaceChildren(...open.map((job) => {
    const bar = make("progress", { "aria-label": `${job.title} of ${job.name}`, ...(job.fraction === null ? {} : { value: job.fraction }) });
    const stop = make("button", { type: "button", class: "plain", "aria-label": `Cancel ${job.title} of ${job.name}` }, "cancel");
    stop.addEventListener("click", () => cancel(job.id));
    return make("li", {}, make("span", { class: "line" }, make("b", {}, `${job.title}: ${job.name}`), stop), bar, make("span", { class: "faint" }, job.doing));
  }));
}
async function cancel(id) {
  try { await call(`/api/jobs/${id}`, { method: "DELETE" }); } catch (error) { problem(error.message); }
}
function take(news) {
  state.jobs = news.jobs;
  drawJobs();
  const mine = now.job && state.jobs.find((job) => job.id === now.job);
  if (mine) follow(mine).catch((error) => problem(error.message));
}
async function refresh() {
  const { files, results, tasks, socs, changes, version, largest_upload: largest } = await (await call("/api/state")).json();
  Object.assign(state, { files, results, tasks, socs, changes, largest });
  $("version").textContent = version;
  drawHistory();
}
async function hear(news) {
  if (news.changes !== state.changes) await refresh();
  take(news);
}

// ---- files that are dropped ----
function upload(file) {
  if (state.largest && file.size > state.largest) { refuse(file.name, `${file.name}: the limit for a file is ${bytes(state.largest)}`); return Promise.resolve(); }
  asked += 1;
  now.job = null;
  problem("");
  $("refused").hidden = true;
  return new Promise((done) => {
    const sent = new XMLHttpRequest();
    sent.open("POST", `/api/files?name=${encodeURIComponent(file.name)}`);
    sent.setRequestHeader("content-type", "application/octet-stream");
    sent.upload.addEventListener("progress", (event) => running({ doing: `reading ${file.name}`, fraction: event.lengthComputable ? event.loaded / event.total : null, seconds: 0 }));
    sent.addEventListener("error", () => { running(null); refuse(file.name, `${file.name}: the workbench refused this file`); done(); });
    sent.addEventListener("load", async () => {
      running(null);
      try { await came(sent); } catch (error) { if (sent.status === 201) problem(error.message); else refuse(file.name, error.message); }
      done();
    });
    sent.send(file);
  });
}
const toMain = () => { if (matchMedia("(max-width: 860px)").matches) $("main").scrollIntoView(); };
async function came(sent) {
  let answer = {};
  try { answer = JSON.parse(sent.responseText); } catch { /* no JSON */ }
  if (sent.status !== 201) throw new Error(answer.error || `the workbench answered ${sent.status}`);
  await refresh();
  if (answer.result) {
    await openEntry(state.results.find((one) => one.id === answer.result));
    return;
  }
  clearShown();
  openFile(answer.file, answer.job.task);
  toMain();
  now.job = answer.job.id;
  await follow(state.jobs.find((job) => job.id === now.job) || answer.job);
}
async function uploads(files) { for (const file of files) await upload(file); }

function listen() {
  const events = new EventSource("/api/events");
  events.onmessage = (event) => { $("where").textContent = "stays on this machine"; $("where").classList.remove("bad"); hear(JSON.parse(event.data)).catch((error) => problem(error.message)); };
  events.onerror = () => { $("where").textContent = "not connected"; $("where").classList.add("bad"); };
}
function start() {
  $("pick").addEventListener("change", () => { uploads([...$("pick").files]).finally(() => { $("pick").value = ""; }); });
  let depth = 0;
  addEventListener("dragenter", (event) => { event.preventDefault(); depth += 1; $("veil").hidden = false; });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) { depth = 0; $("veil").hidden = true; } });
  addEventListener("drop", (event) => { event.preventDefault(); depth = 0; $("veil").hidden = true; uploads([...event.dataTransfer.files]); });
  addEventListener("paste", (event) => { const files = [...(event.clipboardData?.files || [])]; if (files.length) uploads(files); });
  $("form").addEventListener("input", () => {
    suit($("form"));
    now.options = read($("form"), now.task);
    if (!now.task.is_live) return;
    clearTimeout(timer);
    timer = setTimeout(request, SOON);
  });
  $("form").addEventListener("submit", (event) => { event.preventDefault(); now.options = read($("form"), now.task); if (complete($("form"))) request(); });
  $("settings").addEventListener("click", () => { now.isOpen = $("form").hidden; fold(); if (now.isOpen) $("form").querySelector("input, select")?.focus(); });
  $("cancel").addEventListener("click", () => { if (now.job) cancel(now.job); });
  $("again").addEventListener("click", () => request({ again: true }));
  $("find").addEventListener("input", drawHistory);
  $("home").addEventListener("click", () => { asked += 1; now.file = now.job = null; clearShown(); running(null); $("file").hidden = true; $("welcome").hidden = false; document.title = "qnnmem workbench"; drawHistory(); });
  $("clear").addEventListener("click", async () => { if (confirm("Remove all results from the history?")) { await call("/api/results", { method: "DELETE" }); await refresh(); } });
  $("forget").addEventListener("click", async () => {
    try { await call(`/api/files/${now.file.id}`, { method: "DELETE" }); $("home").click(); await refresh(); } catch (error) { problem(error.message); }
  });
  $("compare").addEventListener("click", () => compare(...[...picked].sort((one, other) => one - other)));
  $("earlier").addEventListener("click", () => { const entry = state.results.find((one) => one.id === now.result); compare(before(entry).id, entry.id); });
  setInterval(() => { if (!$("running").hidden) tick(); }, 1000);
  refresh().then(listen, (error) => problem(error.message));
}
start();
