"use strict";
// The state lives on the server: every action is one request, whose answer is shown.
const at = (id) => document.getElementById(id);
const make = (tag, more = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), more);
  made.append(...inside);
  return made;
};
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const LEFT_OUT = -1;
let all = { groups: [], version: 0 };
let byId = new Map();
let current = null; // number of the group shown
let shown = []; // its members: {key, ...}
let selected = new Set();
let anchor = null;
let working = false; // a change is on its way: the next one must know what it made

async function ask(path, body) {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, sent);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.detail);
  return found;
}

function say(text, bad = false, undoable = false) {
  const toast = at("toast");
  toast.replaceChildren(text);
  toast.className = bad ? "bad" : "";
  if (undoable) toast.append(make("button", { textContent: "Undo", onclick: () => act({ action: "undo" }, "Undone") }));
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.hidden = true; }, bad ? 7000 : 4000);
}

function take(overview) {
  all = overview;
  byId = new Map(all.groups.map((group) => [group.id, group]));
}

async function act(change, message, next = current) {
  if (working) return;
  working = true;
  const slow = setTimeout(() => { say("Working…"); clearTimeout(say.timer); }, 300); // until the answer is there
  try {
    take(await ask("api/act", { version: all.version, change }));
    if (["split", "move", "drop", "merge"].includes(change.action)) selected = new Set(); // they are elsewhere now
    drawTree(); // what the toast says can be undone from here on
    clearTimeout(slow);
    say(message, false, change.action !== "undo");
  } catch (error) {
    clearTimeout(slow);
    say(error.message, true);
    take(await ask("api/overview"));
    next = current;
  } finally {
    working = false;
  }
  await show(next);
}

// Order of the list: each group above its own, larger ones first.
function ordered() {
  const below = new Map();
  for (const group of all.groups) {
    const key = group.parent ?? "top";
    if (!below.has(key)) below.set(key, []);
    below.get(key).push(group);
  }
  const found = [];
  const walk = (key) => {
    for (const group of (below.get(key) || []).sort((a, b) => b.counts[0] - a.counts[0] || a.name.localeCompare(b.name))) {
      found.push(group);
      walk(group.id);
    }
  };
  walk("top");
  return found;
}

function drawTree() {
  const entries = ordered().map((group) => {
    const depth = all.levels - group.level;
    const kind = depth === 0 ? (all.levels > 1 ? "top" : "") : depth === 1 ? "deep" : "deeper";
    const entry = make("button", { className: `entry ${kind}`, onclick: () => show(group.id, true) },
      make("span", { className: "tick", textContent: group.done ? "✓" : "" }),
      make("span", { className: "name", textContent: group.name }),
      make("small", { textContent: group.counts[0].toLocaleString("en") }));
    entry.dataset.group = group.id;
    if (group.id === current) entry.setAttribute("aria-current", "true");
    return entry;
  });
  if (all.left_out) {
    const entry = make("button", { className: "entry top", onclick: () => show(LEFT_OUT, true) },
      make("span", { className: "tick" }), make("span", { className: "name", textContent: "Left out" }),
      make("small", { textContent: all.left_out.toLocaleString("en") }));
    if (current === LEFT_OUT) entry.setAttribute("aria-current", "true");
    entries.push(entry);
  }
  const nav = at("tree");
  const top = nav.scrollTop;
  nav.replaceChildren(...entries);
  nav.scrollTop = top;
  nav.querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" });
  const finest = all.groups.filter((group) => group.level === 1);
  const right = finest.filter((group) => group.done).length;
  at("bar").value = finest.length ? right / finest.length : 0;
  at("share").textContent = `${right} of ${finest.length} right`;
  at("undo").disabled = !all.undo;
  at("redo").disabled = !all.redo;
}

function drawTools() {
  const group = byId.get(current);
  const n = selected.size;
  at("chosen").textContent = n ? `${n} selected` : "";
  at("split").disabled = !group || shown.length < 2;
  at("new").disabled = !group || !n || n === shown.length;
  at("move").disabled = n ? false : !group || group.level === all.levels;
  at("merge").disabled = !group || all.groups.filter((other) => other.level === group.level).length < 2;
  at("drop").disabled = !group || group.level > 1 || !n;
  at("all").textContent = n && n === shown.length ? "Select none" : "Select all";
}

function drawMembers() {
  const cards = shown.map((member, place) => {
    const pictures = (member.pictures || []).map((source) => make("img", { src: source, alt: "", loading: "lazy", onerror: (event) => event.target.remove() }));
    const card = make("div", { className: "member", tabIndex: 0, title: member.hint || "" });
    if (pictures.length) card.append(make("div", { className: "pictures" }, ...pictures));
    card.append(make("b", { textContent: member.name }), make("small", { textContent: member.note }));
    if (member.group !== undefined) {
      card.append(make("button", { className: "open", textContent: "Open", onclick: (event) => { event.stopPropagation(); show(member.group, true); } }));
    }
    card.setAttribute("role", "option");
    card.setAttribute("aria-selected", selected.has(member.key));
    card.onclick = (event) => choose(place, event.shiftKey);
    card.onkeydown = (event) => { if (event.key === " " || (event.key === "Enter" && event.target === card)) { event.preventDefault(); choose(place, event.shiftKey); } };
    return card;
  });
  at("members").replaceChildren(...cards);
}

function choose(place, range) {
  const key = shown[place].key;
  if (range && anchor !== null) {
    for (let i = Math.min(anchor, place); i <= Math.max(anchor, place); i++) selected.add(shown[i].key);
  } else if (selected.has(key)) selected.delete(key);
  else selected.add(key);
  anchor = place;
  document.querySelectorAll(".member").forEach((card, i) => card.setAttribute("aria-selected", selected.has(shown[i].key)));
  drawTools();
}

const pictureOf = (text, n) => `picture?text=${encodeURIComponent(text)}&n=${n}`;

function counted(counts) {
  const parts = [];
  if (counts[1] !== counts[0]) parts.push(count(counts[1], "label"));
  parts.push(count(counts[2], "image"));
  return parts.join(", ");
}

async function show(number, enter = false) {
  if (number !== LEFT_OUT && !byId.has(number)) number = ordered()[0]?.id ?? LEFT_OUT;
  if (number === LEFT_OUT && !all.left_out) number = ordered()[0]?.id;
  const moved = number !== current;
  current = number;
  if (enter) document.body.classList.add("inside");
  history.replaceState(null, "", `#${current}`);
  const found = await ask(current === LEFT_OUT ? "api/left-out" : `api/members?group=${current}`);
  if (number !== current) return; // another one was opened meanwhile
  if (found.texts) {
    shown = found.texts.map((one) => ({
      key: one.text, name: one.text, note: counted(one.counts),
      hint: one.labels.join(", "),
      pictures: Array.from({ length: one.images }, (_, n) => pictureOf(one.text, n)),
    }));
  } else {
    shown = found.groups.map((one) => {
      const group = byId.get(one.id);
      return { key: one.id, group: one.id, name: group.name, note: `${count(group.counts[0], "text")}, ${counted(group.counts)}`,
        pictures: one.images.map((text) => pictureOf(text, 0)) };
    }).sort((a, b) => byId.get(b.key).counts[0] - byId.get(a.key).counts[0]);
  }
  const there = new Set(shown.map((member) => member.key));
  selected = moved ? new Set() : new Set([...selected].filter((key) => there.has(key)));
  anchor = null;
  const group = byId.get(current);
  // Redrawing the same group must not overwrite a name that is being typed.
  if (moved || document.activeElement !== at("name")) at("name").value = group ? group.name : "Left out";
  at("name").disabled = at("done").disabled = !group;
  at("done").setAttribute("aria-pressed", Boolean(group?.done));
  const above = [];
  for (let up = group?.parent; up !== undefined && up !== null; up = byId.get(up).parent) {
    const target = up;
    above.unshift(make("button", { className: "quiet", textContent: byId.get(up).name, onclick: () => show(target, true) }), " › ");
  }
  at("above").replaceChildren(...above);
  at("counts").textContent = group ? `${count(group.counts[0], "text")}, ${counted(group.counts)}` : "These texts have no group; move them to restore them.";
  at("more").textContent = found.n > shown.length ? `The ${shown.length} most typical of ${found.n} are shown; split the group to see the others.` : "";
  if (moved) at("group").scrollTop = 0;
  drawTree();
  drawTools();
  drawMembers();
}

function pick(title, choices) {
  return new Promise((resolve) => {
    const dialog = at("picker");
    at("picker-title").textContent = title;
    at("picker-find").value = "";
    let marked = 0;
    let listed = [];
    let taken = null;
    const draw = () => {
      const words = at("picker-find").value.toLowerCase();
      listed = choices.filter((group) => group.name.toLowerCase().includes(words));
      marked = Math.max(0, Math.min(marked, listed.length - 1));
      at("choices").replaceChildren(...listed.slice(0, 200).map((group, place) => {
        const choice = make("button", { type: "button", className: "entry choice", onclick: () => { taken = group.id; dialog.close(); } },
          make("span", { className: "name", textContent: group.name }), make("small", { textContent: [byId.get(group.parent)?.name, group.counts[0]].filter(Boolean).join(" · ") }));
        choice.setAttribute("role", "option");
        choice.setAttribute("aria-selected", place === marked);
        return choice;
      }));
      at("choices").children[marked]?.scrollIntoView({ block: "nearest" });
    };
    at("picker-find").oninput = () => { marked = 0; draw(); };
    at("picker-find").onkeydown = (event) => {
      if (event.key === "ArrowDown") marked++;
      else if (event.key === "ArrowUp") marked--;
      else if (event.key === "Enter") { event.preventDefault(); taken = listed[marked]?.id ?? null; dialog.close(); return; }
      else return;
      event.preventDefault();
      draw();
    };
    dialog.onclose = () => resolve(taken);
    draw();
    dialog.showModal();
    at("picker-find").focus();
  });
}

function askName(title, name) {
  return new Promise((resolve) => {
    const dialog = at("asker");
    at("asker-title").textContent = title;
    at("answer").value = name;
    dialog.returnValue = "";
    at("answer").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); dialog.close("ok"); } };
    dialog.onclose = () => resolve(dialog.returnValue === "ok" ? at("answer").value.trim() : null);
    dialog.showModal();
    at("answer").select();
  });
}

async function nearest(number, level) {
  const near = number === LEFT_OUT ? all.groups.filter((group) => group.level === level).map((group) => group.id)
    : await ask(`api/near?group=${number}&level=${level}`);
  return near.map((id) => byId.get(id));
}

const actions = {
  undo: () => act({ action: "undo" }, "Undone"),
  redo: () => act({ action: "redo" }, "Redone"),
  done: async () => {
    const group = byId.get(current);
    const next = group.done ? current : step(1) ?? current;
    await act({ action: "done", group: current, done: !group.done }, group.done ? "Unmarked" : `${group.name} marked as correct`, next);
  },
  split: () => act({ action: "halve", group: current }, "Split in two"),
  new: async () => {
    const group = byId.get(current);
    const keys = [...selected];
    const first = shown.find((member) => selected.has(member.key)).name;
    const name = await askName(`New group of ${keys.length} selected`, first);
    if (name) await act({ action: "split", group: current, name, [group.level > 1 ? "groups" : "texts"]: keys }, `${name} made`);
  },
  move: async () => {
    const group = byId.get(current);
    const keys = [...selected];
    if (keys.length && (!group || group.level === 1)) {
      const target = await pick(`Move ${keys.length} selected to`, await nearest(current, 1));
      if (target !== null) await act({ action: "move", texts: keys, group: target }, `Moved to ${byId.get(target).name}`);
    } else if (keys.length) {
      const target = await pick(`Move ${keys.length} selected groups below`, await nearest(current, group.level));
      if (target === null) return;
      const message = `Moved to ${byId.get(target).name}`;
      for (const key of keys) await act({ action: "move", group: key, parent: target }, message);
    } else {
      const choices = (await nearest(current, group.level + 1)).filter((other) => other.id !== group.parent);
      const target = await pick(`Move ${group.name} below`, choices);
      if (target !== null) await act({ action: "move", group: current, parent: target }, `Moved below ${byId.get(target).name}`);
    }
  },
  merge: async () => {
    const group = byId.get(current);
    const target = await pick(`Merge ${group.name} into`, await nearest(current, group.level));
    if (target !== null) await act({ action: "merge", groups: [current], into: target }, `Merged into ${byId.get(target).name}`, target);
  },
  drop: () => act({ action: "drop", texts: [...selected] }, `${selected.size} left out`),
  all: () => {
    selected = selected.size === shown.length ? new Set() : new Set(shown.map((member) => member.key));
    drawMembers();
    drawTools();
  },
  help: () => at("keys").showModal(),
  back: () => document.body.classList.remove("inside"),
};
for (const [id, run] of Object.entries(actions)) at(id).onclick = run;

function step(by) {
  const order = ordered().filter((group) => group.level === 1 || by === 0);
  const place = order.findIndex((group) => group.id === current);
  return order[Math.max(0, place + by)]?.id;
}

at("name").onkeydown = (event) => {
  if (event.key === "Enter") at("name").blur();
  if (event.key === "Escape") { at("name").value = byId.get(current).name; at("name").blur(); }
};
at("name").onchange = () => {
  const group = byId.get(current);
  const name = at("name").value.trim();
  if (name && name !== group.name) act({ action: "rename", group: current, name }, `Renamed to ${name}`);
  else at("name").value = group.name;
};

let asked = 0;
at("find").oninput = async () => {
  const words = at("find").value.trim().toLowerCase();
  const mine = ++asked;
  if (!words) { at("hits").hidden = true; return; }
  const texts = await ask(`api/find?words=${encodeURIComponent(words)}`);
  if (mine !== asked) return;
  const groups = ordered().filter((group) => group.name.toLowerCase().includes(words)).slice(0, 20);
  const open = (id) => { at("hits").hidden = true; at("find").value = ""; show(id, true); };
  const entries = [
    ...groups.map((group) => [group.name, count(group.counts[0], "text"), group.id]),
    ...texts.map((one) => [one.text, one.group === null ? "left out" : `in ${byId.get(one.group).name}`, one.group ?? LEFT_OUT]),
  ].map(([name, note, id]) => make("button", { className: "entry", onclick: () => open(id) },
    make("span", { className: "name", textContent: name }), make("small", { textContent: note })));
  at("hits").replaceChildren(...(entries.length ? entries : [make("p", { textContent: "No matches." })]));
  at("hits").hidden = false;
};
at("find").onkeydown = (event) => {
  if (event.key === "Escape") { at("find").value = ""; at("hits").hidden = true; at("find").blur(); }
  if (event.key === "Enter") at("hits").querySelector("button")?.click();
};
document.addEventListener("click", (event) => { if (!event.target.closest(".search")) at("hits").hidden = true; });

const keys = { s: "split", n: "new", m: "move", g: "merge", x: "drop", a: "all", d: "done", u: "undo", U: "redo", "?": "help" };
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, dialog");
  if (typing || event.ctrlKey && event.key !== "z" || event.metaKey && event.key !== "z" || event.altKey) return;
  if (event.key === "z" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); actions.undo(); return; }
  if (event.key === "j" || event.key === "k") show(step(event.key === "j" ? 1 : -1) ?? current, true);
  else if (event.key === "r") { event.preventDefault(); at("name").focus(); at("name").select(); }
  else if (event.key === "/") { event.preventDefault(); at("find").focus(); }
  else if (event.key === "Escape") { selected = new Set(); drawMembers(); drawTools(); }
  else if (keys[event.key] && !at(keys[event.key]).disabled) { event.preventDefault(); actions[keys[event.key]](); }
});

ask("api/overview").then((overview) => {
  take(overview);
  const wanted = Number(location.hash.slice(1));
  const known = location.hash && byId.has(wanted);
  return show(known ? wanted : ordered().find((group) => group.level === 1)?.id, Boolean(known));
}).catch((error) => say(error.message, true));
