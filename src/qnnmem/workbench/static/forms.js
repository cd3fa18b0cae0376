// Forms out of the controls that the server names: it checks what comes back against the same table.
const make = (name, attributes = {}, ...inside) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, ""); else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...inside);
  return made;
};
export { make };

function field(control, value, socs) {
  const made = shownField(control, value, socs);
  if (control.only_with) [made.dataset.name, made.dataset.value] = control.only_with;
  return made;
}
function shownField(control, value, socs) {
  const id = `set-${control.name}`;
  const hint = control.hint ? { "aria-describedby": `${id}-hint` } : {};
  const small = control.hint ? [make("small", { id: `${id}-hint` }, control.hint)] : [];
  if (control.kind === "switch") {
    const box = make("input", { type: "checkbox", id, name: control.name, role: "switch" });
    box.checked = value === true;
    return make("div", { class: "field toggle" }, box, make("label", { for: id }, control.label));
  }
  if (control.many) {
    const boxes = control.choices.map(([word, shown]) => {
      const box = make("input", { type: "checkbox", name: control.name, value: word, id: `${id}-${word}` });
      box.checked = (value || []).includes(word);
      return make("label", { for: `${id}-${word}`, class: "word" }, box, shown);
    });
    return make("fieldset", { class: "field" }, make("legend", {}, control.label), make("div", { class: "words" }, ...boxes), ...small);
  }
  const sizes = control.kind === "list" && Array.isArray(value) ? value.filter((one) => /^[^=]+=/.test(one)) : [];
  if (sizes.length) { // a field for each size, of a shape for each of its dimensions, and one for more
    const each = sizes.map((one, at) => {
      const cut = one.lastIndexOf("="), name = one.slice(0, cut), given = one.slice(cut + 1), parts = /^\d+(x\d+)+$/.test(given) ? given.split("x") : [given];
      const boxes = parts.map((part, axis) => {
        const words = parts.length > 1 ? `${name}, dimension ${axis}` : name;
        const box = make("input", { type: "text", id: `${id}-${at}${axis ? `-${axis}` : ""}`, name: control.name, "data-size": name, spellcheck: "false", size: Math.max(part.length, 3), "aria-label": words });
        box.value = part;
        return box;
      });
      return make("div", { class: "size" }, make("span", {}, name), ...boxes);
    });
    const more = make("input", { type: "text", id, name: control.name, spellcheck: "false", placeholder: "name=value", "aria-label": `another of ${control.label}` });
    more.value = value.filter((one) => !sizes.includes(one)).join(" ");
    return make("fieldset", { class: "field" }, make("legend", {}, control.label), make("div", { class: "sizes" }, ...each, more), ...small);
  }
  let input;
  if (control.kind === "choice" || control.kind === "soc") {
    const choices = control.kind === "choice" ? control.choices
      : [["", control.is_needed ? "choose one" : "the SoC it was made for"], ...socs.map((soc) => [soc.name, soc.known_as ? `${soc.name}, ${soc.known_as}` : soc.name])];
    input = make("select", { id, name: control.name, ...hint }, ...choices.map(([word, shown]) => make("option", { value: word }, shown)));
  } else if (control.kind === "number") {
    input = make("input", { type: "number", id, name: control.name, min: control.low, max: control.high, ...hint });
  } else {
    input = make("input", { type: "text", id, name: control.name, spellcheck: "false", placeholder: control.hint.replace("e.g. ", ""), ...hint });
  }
  input.required = control.is_needed;
  input.value = Array.isArray(value) ? value.join(" ") : value ?? "";
  return make("div", { class: "field" }, make("label", { for: id }, control.label), input, ...small);
}

export function fill(form, task, options, socs) {
  const usual = [], rare = [];
  for (const control of task.controls) (control.is_rare ? rare : usual).push(field(control, options[control.name], socs));
  const parts = [make("div", { class: "fields" }, ...usual)];
  if (rare.length) {
    const open = task.controls.some((one) => one.is_rare && options[one.name]);
    parts.push(make("details", { open }, make("summary", {}, "more settings"), make("div", { class: "fields" }, ...rare)));
  }
  if (!task.is_live) parts.push(make("button", { type: "submit", class: "first" }, `Run ${task.title.toLowerCase() === "htp bill" ? "bill" : task.title.toLowerCase()}`));
  form.replaceChildren(...(task.controls.length || !task.is_live ? parts : []));
  suit(form);
}

// A setting that has no meaning beside the others is neither shown nor asked for nor sent.
export function suit(form) {
  for (const old of form.querySelectorAll(".missing")) if (old.previousElementSibling?.value) old.remove();
  for (const one of form.querySelectorAll("[data-name]")) {
    one.hidden = form.elements[one.dataset.name].value !== one.dataset.value;
    for (const input of one.querySelectorAll("input, select")) input.disabled = one.hidden;
  }
}

// Whether all that is needed is there; what is missing is said beside its field.
export function complete(form) {
  for (const old of form.querySelectorAll(".missing")) old.remove();
  const missing = [...form.elements].filter((input) => input.required && !input.disabled && !input.value);
  for (const input of missing) {
    const name = form.querySelector(`label[for="${input.id}"]`)?.textContent || input.name;
    const words = input.name === "soc" ? "Choose the SoC that the model will run on." : `${name} is needed first.`;
    input.after(make("small", { class: "missing bad", role: "alert" }, words));
  }
  missing[0]?.focus();
  return missing.length === 0;
}

// Words of a list: `name=1x3` of the fields of one shape, and what stands in the field for more.
function listed(boxes) {
  const shapes = new Map(), words = boxes.filter((box) => !box.dataset.size).flatMap((box) => box.value.split(/[\s;]+/).filter(Boolean));
  for (const box of boxes.filter((one) => one.dataset.size)) shapes.set(box.dataset.size, [...(shapes.get(box.dataset.size) || []), box.value.trim()]);
  return [...[...shapes].filter(([, parts]) => parts.every(Boolean)).map(([name, parts]) => `${name}=${parts.join("x")}`), ...words];
}

export function read(form, task) {
  const options = {};
  for (const control of task.controls) {
    const found = form.elements[control.name];
    if (!found || found.disabled) continue;
    let value;
    if (control.kind === "switch") value = found.checked;
    else if (control.many) value = [...form.querySelectorAll(`[name="${control.name}"]:checked`)].map((box) => box.value);
    else if (control.kind === "list") value = listed([...form.querySelectorAll(`[name="${control.name}"]`)]);
    else if (control.kind === "number") value = found.value === "" ? null : Number(found.value);
    else value = found.value;
    if (value !== null && value !== "" && value !== false && !(Array.isArray(value) && !value.length)) options[control.name] = value;
  }
  return options;
}
