// The peak as a treemap: phase, module, source line, array.
function peakTree(report) {
  const root = { name: "the peak", bytes: 0, phase: "fragmentation", children: new Map() };
  const grow = (path, bytes, phase, about) => {
    let node = root;
    node.bytes += bytes;
    for (const name of path) {
      if (!node.children.has(name)) node.children.set(name, { name, bytes: 0, phase, children: new Map() });
      node = node.children.get(name);
      node.bytes += bytes;
    }
    Object.assign(node, about);
  };
  const many = manyAlike(report.rows.map((b) => b.module));
  const lines = manyAlike(report.rows.filter((b) => !b.source).map((b) => b.made));
  for (const b of report.rows) {
    if (b.host) continue;
    const module = many(b.module) ? [alike(b.module), b.module] : [b.module];
    const times = b.count > 1 ? ` \u00d7${formatCount(b.count)}` : "";
    if (b.rest) grow([b.phase, ...module, `${formatCount(b.count)} smaller`], b.bytes, b.phase);
    else grow([b.phase, ...module, lineOf(b, lines), [b.array + times, b.made].filter(Boolean).join(" ")], b.bytes, b.phase,
      { array: b.array + times, made: b.made, source: b.source });
  }
  if (report.fragmentation_bytes) grow(["fragmentation"], report.fragmentation_bytes, "fragmentation");
  return tidy(root);
}

// Where a buffer comes from: its source line, or else what made it.
const lineOf = (b, many) => (b.source ? short(b.source) : many(b.made) ? alike(b.made) : b.made || b.phase);

// Children as a list, the largest first; very many small ones as one that opens.
const ordered = (nodes) => nodes.sort((a, b) => b.bytes - a.bytes || a.name.localeCompare(b.name, "en", { numeric: true }));
function tidy(node) {
  const children = bundle(ordered([...node.children.values()]).map(tidy));
  const tidied = { ...node, children: ordered(children) };
  for (const child of children) child.parent = tidied;
  return tidied;
}
function bundle(nodes, most = 48) {
  if (nodes.length <= most) return nodes;
  const rest = nodes.slice(most - 1);
  const bytes = rest.reduce((sum, child) => sum + child.bytes, 0);
  const bundled = { bundled: true, name: `${formatCount(rest.length)} smaller`, bytes, phase: rest[0].phase, children: bundle(rest, most) };
  for (const child of bundled.children) child.parent = bundled;
  return [...nodes.slice(0, most - 1), bundled];
}

// Squarified treemaps (Bruls, Huizing, van Wijk 2000): rows as square as can be.
function squarify(nodes, x, y, width, height) {
  const total = nodes.reduce((sum, node) => sum + node.bytes, 0);
  const scale = (width * height) / (total || 1);
  const placed = [];
  let rest = nodes.filter((node) => node.bytes > 0);
  while (rest.length) {
    const side = Math.min(width, height);
    let row = [], area = 0, worst = Infinity;
    for (const node of rest) {
      const grown = area + node.bytes * scale;
      const ratios = [...row, node].map((n) => n.bytes * scale).map((a) => Math.max((side * side * a) / grown ** 2, grown ** 2 / (side * side * a)));
      const ratio = Math.max(...ratios);
      if (ratio > worst) break;
      row.push(node);
      [area, worst] = [grown, ratio];
    }
    if (!row.length) break;
    const thick = area / (side || 1);
    let along = 0;
    for (const node of row) {
      const length = (node.bytes * scale) / (thick || 1);
      placed.push(width >= height
        ? { node, x, y: y + along, width: thick, height: length }
        : { node, x: x + along, y, width: length, height: thick });
      along += length;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    rest = rest.slice(row.length);
  }
  return placed;
}

function treemap(host, trail, report) {
  const root = peakTree(report);
  let path = [root];

  // A click opens the innermost box under it that holds others; a key the whole tile.
  function open(event, node) {
    let inner = (event.detail && event.target.closest(".cell")?.node) || node;
    while (!inner.children.length && inner.parent) inner = inner.parent;
    if (inner !== path.at(-1)) go(ancestors(inner), event.detail ? "mouse" : "key");
  }

  function go(next, focus) {
    path = next;
    hideTip();
    render();
    if (focus) (host.querySelector("button.tile:not(.leaf)") ?? trail.querySelector("button"))?.focus({ focusVisible: focus === "key" });
  }

  // A box's name in shorter and shorter words; of layers alike, what tells them apart.
  function names(node) {
    const parts = (node.made || node.name).match(/\[[^\]]*\]|[^/[]+\/?/g) ?? [""];
    const tails = parts.map((_, i) => parts.slice(i).join(""));
    const array = node.array ? `${node.array} ` : "";
    const found = [...tails.map((tail) => array + tail), node.array];
    if (node.parent?.name !== alike(node.made || node.name)) return found;
    const number = parts.find((part) => /\d/.test(part)) ?? "";
    return [found[0], number.replace(/\/$/, ""), /\d+/.exec(number)?.[0]];
  }

  // From the root to a node, itself included.
  const ancestors = (node) => (node.parent ? [...ancestors(node.parent), node] : [node]);

  function hover(node, event) {
    const parents = ancestors(node).slice(1, -1).map((parent) => parent.name);
    const rows = [[null, "bytes", formatBytes(node.bytes), "sum"], [null, "of the peak", formatShare(node.bytes, root.bytes)]];
    if (path.length > 1) rows.push([null, "of what is shown", formatShare(node.bytes, path.at(-1).bytes)]);
    showTip(event.clientX, event.clientY, node.made || node.name, [node.made ? node.array : "", node.source, parents.join(" \u203a ")], rows);
  }

  // What is written in a box: a name if it fits whole, then the size; upright if it must.
  function caption(node, width, height) {
    const across = words(node, width - 16, height);
    if (width < 20 || across[0]?.className === "name" || (across.length && height < 1.6 * width)) return across;
    const upright = words(node, height - 12, width);
    return upright.length > across.length || upright[0]?.className === "name" ? [make("span", { class: "upright" }, ...upright)] : across;
  }

  function words(node, long, wide) {
    const name = wide >= 20 ? fitting(names(node), long, monoFont(12)) : "";
    const size = wide >= (name ? 40 : 22) ? fitting([formatBytes(node.bytes)], long, bodyFont(12)) : "";
    return [name && make("span", { class: "name" }, name), size && make("span", { class: "size" }, size)].filter(Boolean);
  }

  const box = (placed) => ({ left: `${placed.x}px`, top: `${placed.y}px`, width: `${Math.max(0, placed.width - 2)}px`, height: `${Math.max(0, placed.height - 2)}px` });
  const shade = (depth, divided) => (divided ? `${32 + 9 * depth}%` : "var(--leaf)");
  const paintOf = (node) => ({ "--tone": node.phase === "fragmentation" ? "var(--fragmentation)" : tone(node.phase) });

  // Of boxes that hold one box each, the first that holds several.
  const divided = (node) => (node.children.length === 1 && node.children[0].children.length ? divided(node.children[0]) : node);

  // A box within a tile: large ones are divided again.
  function cell(placed, depth = 0) {
    const { node, width, height } = placed;
    const within = divided(node);
    const titles = within === node ? names(node) : [`${node.name} \u203a ${within.name}`, ...names(node)];
    const title = within.children.length > 1 && !within.bundled && depth < 3 && width >= 90 && height >= 64 && fitting(titles, width - 18, monoFont(12));
    const kind = node.phase === "fragmentation" ? "cell fragmentation" : "cell";
    const element = make("span", { class: kind, style: { ...box(placed), ...paintOf(node), "--fill": shade(depth, title) } });
    element.node = node;
    if (title) {
      element.append(heading(node, title, width, monoFont(12)));
      element.append(...squarify(within.children, 2, 20, width - 6, height - 24).map((p) => cell(p, depth + 1)));
    } else element.append(...caption(node, width, height));
    return element;
  }

  function heading(node, title, width, font) {
    const size = formatBytes(node.bytes);
    const roomy = widthOf(title, font) + widthOf(size, font) + 12 <= width - 18;
    return make("span", { class: "title", style: { font } }, make("b", {}, title), roomy ? make("span", {}, size) : "");
  }

  function tile(placed) {
    const { node, width, height } = placed;
    const opens = node.children.length > 0;
    const element = make("button", {
      type: "button", class: `tile${opens ? "" : " leaf"}`, style: { ...box(placed), ...paintOf(node) },
      "aria-label": `${node.name}, ${formatBytes(node.bytes)}${opens ? ", open" : ""}`, "data-name": node.name, "data-bytes": node.bytes,
      onclick: (event) => open(event, node),
    });
    element.node = node;
    const font = bodyFont(12.5, "600");
    const titled = opens && height >= 52 && width >= 44;
    const title = titled ? fitting(names(node), width - 18, font) : "";
    if (!opens || !title) {
      const inside = cell({ node, x: 0, y: 0, width, height });
      element.append(inside);
      return element;
    }
    element.append(heading(node, title, width, font));
    const inner = squarify(node.children, 2, 22, width - 4, height - 25);
    element.append(...inner.map((p) => cell(p)));
    return element;
  }

  function render() {
    const node = path.at(-1);
    trail.replaceChildren(...path.flatMap((step, depth) => {
      const words = `${step.name} ${formatBytes(step.bytes)}`;
      const last = depth === path.length - 1;
      const part = last ? make("b", { "aria-current": "location" }, words) : make("button", { type: "button", onclick: (event) => go(path.slice(0, depth + 1), event.detail ? "mouse" : "key") }, words);
      return depth ? [make("span", { class: "q", "aria-hidden": "true" }, "\u203a"), part] : [part];
    }));
    const shown = node.children.length ? node.children : [node];
    host.replaceChildren(...squarify(shown, 0, 0, host.clientWidth, host.clientHeight).map((placed) => tile(placed)));
  }

  host.addEventListener("pointermove", (event) => {
    const under = event.target.closest(".cell") ?? event.target.closest(".tile");
    if (under) hover(under.node, event);
    else hideTip();
  });
  host.addEventListener("pointerleave", hideTip);
  host.addEventListener("focusin", (event) => {
    const under = event.target.closest(".tile");
    if (!under?.matches(":focus-visible")) return;
    const { right, top } = under.getBoundingClientRect();
    hover(under.node, { clientX: right, clientY: top + 20 });
  });
  host.addEventListener("focusout", hideTip);
  for (const area of [host, trail])
    area.addEventListener("keydown", (event) => {
      if ((event.key === "Escape" || event.key === "Backspace") && path.length > 1) go(path.slice(0, -1), "key");
    });
  whenResized(host, render);
}
