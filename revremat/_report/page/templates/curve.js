// Memory over the schedule: categories stacked, fragmentation above them, the card's limit.
function curve(host, report) {
  const { positions, series, fragmentation, labels } = report.curve;
  const count = positions.length;
  const last = positions[count - 1] + (count > 1 ? (positions[count - 1] - positions[0]) / (count - 1) : 1);
  const used = positions.map((_, i) => series.reduce((sum, [, column]) => sum + column[i], 0));
  const totals = used.map((bytes, i) => bytes + (fragmentation[i] ?? 0));
  const highest = Math.max(1, ...totals);
  const peak = used.indexOf(Math.max(...used));
  const limit = report.usable_bytes;
  const limitShown = limit > 0 && limit <= 2.5 * highest;
  const most = Math.max(highest, limitShown ? limit : 0) * 1.04;

  function paint(plot) {
    const small = plot.width < 560;
    const height = small ? 270 : 340;
    const [left, right, top, bottom] = [62, plot.width - (small ? 6 : 96), 30, height - 46];
    Object.assign(plot, { left, right, top, bottom, height });
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);
    const put = (tag, attributes, ...children) => plot.svg.appendChild(draw(tag, attributes, ...children));
    const from = Math.max(0, positions.findLastIndex((p) => p <= plot.range[0]));
    const until = positions.findIndex((p) => p >= plot.range[1]);
    const shown = positions.map((_, i) => i).slice(from, until < 0 ? count : until);
    const edge = (i) => Math.max(left, Math.min(right, plot.x(i < count ? positions[i] : last)));
    const number = (value) => +value.toFixed(1);

    for (const [bytes, label] of ticks(0, most, 6, BYTES)) {
      put("line", { class: bytes ? "grid" : "axis", x1: left, x2: right, y1: y(bytes), y2: y(bytes) });
      put("text", { x: left - 8, y: y(bytes) + 4, "text-anchor": "end" }, label);
    }
    const area = (low, high) => {
      let there = "", back = "";
      for (const i of shown) {
        there += `${there ? "L" : "M"}${number(edge(i))} ${number(y(high[i]))}H${number(edge(i + 1))}`;
        back = `L${number(edge(i + 1))} ${number(y(low[i]))}H${number(edge(i))}${back}`;
      }
      return `${there}${back}Z`;
    };
    let base = positions.map(() => 0);
    for (const [name, column] of series) {
      const above = base.map((bytes, i) => bytes + column[i]);
      put("path", { d: area(base, above), style: { fill: tone(name) }, "data-series": name });
      base = above;
    }
    if (fragmentation.length) put("path", { d: area(base, totals), fill: "url(#fragmentation)", "data-series": "fragmentation" });

    for (const [value, label] of ticks(...plot.range, plot.width / 110, [[1, ""]])) {
      if (value % 1) continue;
      put("line", { class: "axis", x1: plot.x(value), x2: plot.x(value), y1: bottom, y2: bottom + 5 });
      plot.svg.append(axisLabel(plot.x(value), bottom + 19, label, plot.width));
    }
    put("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "position in the schedule");

    const reach = limitShown ? y(limit) : top + 2;
    if (limitShown) put("line", { class: "under", x1: left, x2: right, y1: reach, y2: reach });
    if (limitShown) put("line", { class: "limit", x1: left, x2: right, y1: reach, y2: reach });
    if (small) put("text", { class: "bad", x: right, y: 12, "text-anchor": "end" }, `${limitShown ? "" : "\u2191 "}usable ${formatBytes(limit)}`);
    else {
      put("text", { class: "bad", x: right + 8, y: reach + 1 }, limitShown ? "usable" : "\u2191 usable");
      put("text", { class: "bad", x: right + 8, y: reach + 16 }, formatBytes(limit));
    }

    const middle = (positions[peak] + (positions[peak + 1] ?? last)) / 2;
    if (middle >= plot.range[0] && middle <= plot.range[1]) {
      const x = plot.x(middle);
      put("line", { class: "mark", x1: x, x2: x, y1: 18, y2: y(used[peak]) });
      put("circle", { class: "knob", cx: x, cy: y(used[peak]), r: 4 });
      const font = bodyFont(12, "600");
      const room = small ? right - left - 120 : right - left;
      const words = fitting([`peak: ${formatBytes(used[peak])} in use, in ${labels[peak]}`, `peak: ${formatBytes(used[peak])} in use`], room, font);
      const half = widthOf(words, font) / 2;
      put("text", { class: "strong", x: Math.max(left + half, Math.min(left + room - half, x)), y: 12, "text-anchor": "middle" }, words);
    }
    return plot;
  }

  function at(plot, value, _, clientX, clientY, index) {
    const i = index ?? Math.max(0, positions.findLastIndex((p) => p <= value));
    const x = plot.x(Math.max(value, positions[i]));
    plot.cursor.append(draw("line", { class: "cursor", x1: x, x2: x, y1: plot.top, y2: plot.bottom }));
    const rows = series.map(([name, column]) => [tone(name), name, column[i]]).filter(([, , bytes]) => bytes).reverse();
    const shown = rows.map(([colour, name, bytes]) => [colour, name, formatBytes(bytes)]);
    shown.push([null, "in use", formatBytes(used[i]), "sum"]);
    if (fragmentation[i]) shown.push([{ class: "fragmentation" }, "fragmentation", formatBytes(fragmentation[i])]);
    showTip(clientX, clientY, labels[i] || "(unnamed)", [`position ${formatCount(positions[i])}${i === peak ? ", the peak" : ""}`], shown);
    return i;
  }

  return new Plot(host, {
    label: `Memory over the schedule. The peak is ${formatBytes(used[peak])} in ${labels[peak] || "an unnamed operation"}. Arrow keys move, plus and minus zoom.`,
    whole: [positions[0], last], paint, at, steps: positions, start: peak,
  });
}
