// The buffers at the peak: groups first, each opens to its buffers.
const GROUPS = {
  alike: { label: "layers alike", columns: ["phase", "module"], key: (b) => alike(b.module), name: (b) => alike(b.module) },
  module: { label: "module", columns: ["phase", "module"], key: (b) => b.module, name: (b) => b.module },
  line: { label: "source line", columns: ["phase", "source line"], key: (b) => b.source, name: (b) => (b.source ? short(b.source) : "(no line)") },
  array: { label: "array", columns: ["phase", "array"], key: (b) => b.array, name: (b) => b.array || "(no array)" },
  each: { label: "each", columns: ["phase", "array", "made by", "at"] },
};
const MOST_SHOWN = 40;

function buffers(host, report) {
  const many = report.rows.map((b) => b.module).some(manyAlike(report.rows.map((b) => b.module)));
  const state = { group: many ? "alike" : "module", sort: "bytes", down: true, words: "", all: false, open: new Set() };
  const whole = report.total_bytes;

  const search = make("input", { type: "search", placeholder: "filter: phase, module, dtype, line", "aria-label": "filter the buffers",
    oninput: () => { state.words = search.value; state.all = false; render(); } });
  const choice = make("span", { class: "choice", role: "group", "aria-label": "group by" }, ...Object.entries(GROUPS).filter(([name]) => many || name !== "alike").map(([name, { label }]) =>
    make("button", { type: "button", "data-group": name, onclick: () => { state.group = name; state.all = false; state.open.clear(); render(); } }, label)));
  const found = make("span", { class: "found", "aria-live": "polite" });
  const scroll = make("div", { class: "scroll" });
  const more = make("button", { type: "button", class: "plain more", onclick: () => { state.all = true; render(); } });
  host.replaceChildren(make("div", { class: "controls" }, search, choice, found), scroll, more);

  const kept = () => {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    return report.rows.filter((b) => words.every((word) => b.words.includes(word)));
  };

  function grouped(rows) {
    const { key, name } = GROUPS[state.group];
    const groups = new Map();
    for (const b of rows) {
      const smaller = b.rest && !["alike", "module"].includes(state.group);
      const id = JSON.stringify([b.phase, b.host, smaller, smaller ? "" : key(b)]);
      if (!groups.has(id)) groups.set(id, { id, phase: b.phase, name: smaller ? "(smaller ones)" : name(b), bytes: 0, count: 0, rows: [], host: b.host });
      const group = groups.get(id);
      group.bytes += b.bytes;
      group.count += b.count;
      group.rows.push(b);
    }
    return [...groups.values()];
  }

  function sorted(items, column) {
    const sign = state.down ? -1 : 1;
    const by = { bytes: "bytes", count: "count", phase: "phase", module: "name", "source line": "name", array: state.group === "each" ? "array" : "name", "made by": "made", at: "source" }[column];
    return items.sort((a, b) => sign * (typeof a[by] === "number" ? a[by] - b[by] : String(a[by]).localeCompare(String(b[by]))) || b.bytes - a.bytes);
  }

  const header = (name, kind) => make("th", { class: kind ?? "", "aria-sort": state.sort === name && (state.down ? "descending" : "ascending") },
    make("button", { type: "button", "data-sort": name, onclick: () => {
      if (state.sort === name) state.down = !state.down;
      else Object.assign(state, { sort: name, down: name === "bytes" || name === "count" });
      render();
    } }, name));
  const phase = (b, where) => make("td", { class: "k" }, make("i", { class: "dot", style: { background: tone(b.phase) } }), b.phase, where);
  const size = (b) => [make("td", { class: "n", "data-bytes": b.bytes }, formatBytes(b.bytes)), make("td", { class: "n q wide-only" }, b.host ? "" : formatShare(b.bytes, whole))];
  const madeBy = (b) => make("td", { class: "m" }, b.rest ? `${formatCount(b.count)} smaller in ${b.module}` : [b.scope, b.op && make("span", { class: "q" }, `${b.scope ? "/" : ""}${b.op}`)]);
  const array = (b) => make("td", { class: "m k" }, b.array, b.count > 1 && !b.rest ? make("span", { class: "q" }, ` \u00d7${formatCount(b.count)}`) : "");
  const at = (b) => make("td", { class: "m q", title: b.source || null }, b.source && short(b.source));
  const each = (b) => make("tr", {}, ...size(b), phase(b, b.host ? " (host)" : ""), array(b), madeBy(b), at(b));

  function inner(group, columns) {
    const rows = sorted([...group.rows], "bytes");
    const shown = state.all ? rows : rows.slice(0, MOST_SHOWN);
    const lines = shown.map((b) => make("tr", {}, make("td", { class: "n" }, formatBytes(b.bytes)), array(b), madeBy(b), at(b)));
    const left = rows.length - shown.length;
    return make("tr", { class: "inner" }, make("td", { colspan: columns },
      make("table", {}, make("tbody", {}, ...lines,
        left ? make("tr", {}, make("td", { colspan: 4, class: "q" }, `and ${formatCount(left)} more; group by \u201ceach\u201d to see them all`)) : ""))));
  }

  function groupRows(group, largest) {
    const open = state.open.has(group.id);
    const flip = () => { if (open) state.open.delete(group.id); else state.open.add(group.id); render(group.id); };
    const fold = make("button", { type: "button", class: "fold", "aria-expanded": String(open), "aria-label": `buffers of ${group.name}`, "data-fold": group.id });
    const row = make("tr", { class: "group", onclick: flip },
      ...size(group), phase(group, group.host ? " (host)" : ""), make("td", { class: "m" }, make("div", { class: "folded" }, fold, make("span", {}, group.name))), make("td", { class: "n q wide-only" }, formatCount(group.count)),
      make("td", { class: "bar wide-only" }, make("div", {}, make("i", { style: { width: `${(100 * group.bytes) / largest}%`, background: tone(group.phase) } }))));
    return open ? [row, inner(group, 6)] : [row];
  }

  function render(focus) {
    const each_ = state.group === "each";
    const { columns } = GROUPS[state.group];
    if (!["bytes", "count", ...columns].includes(state.sort) || (each_ && state.sort === "count")) Object.assign(state, { sort: "bytes", down: true });
    const rows = kept();
    const items = sorted(each_ ? [...rows] : grouped(rows), state.sort);
    // Largest first, what is next to nothing waits behind a button.
    const large = state.sort === "bytes" && state.down && !state.words ? items.filter((item) => item.bytes >= 0.0005 * whole).length : MOST_SHOWN;
    const shown = state.all ? items : items.slice(0, Math.min(MOST_SHOWN, Math.max(5, large)));
    const largest = Math.max(1, ...items.map((item) => item.bytes));
    const head = make("tr", {}, header("bytes", "n"), make("th", { class: "n wide-only" }, "share"), ...columns.map((name) => header(name)),
      ...(each_ ? [] : [header("count", "n wide-only"), make("th", { class: "wide-only" })]));
    const body = shown.flatMap((item) => (each_ ? [each(item)] : groupRows(item, largest)));
    scroll.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
    for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.group === state.group));
    const sum = (list, key) => list.reduce((total, b) => total + b[key], 0);
    const all = formatCount(sum(report.rows, "count"));
    const device = rows.filter((b) => !b.host);
    found.textContent = `${rows.length < report.rows.length ? `${formatCount(sum(rows, "count"))} of ` : ""}${all} buffers, ${formatBytes(sum(device, "bytes"))} on the device`;
    more.hidden = shown.length === items.length;
    more.textContent = `show all ${formatCount(items.length)}`;
    if (focus) [...scroll.querySelectorAll(".fold")].find((b) => b.dataset.fold === focus)?.focus();
  }
  render();
}
