// The estimated timeline: one lane for each stream, what is waited for marked.
const LANES = [["compute", "compute"], ["collective", "collectives"], ["transfer", "transfers"]];

function timeline(host, report) {
  const spans = report.spans.map(([stream, phase, scope, op, start, duration, exposed, times]) =>
    ({ stream: text(stream), phase: text(phase), scope: text(scope), op: text(op), start, duration, exposed, times }));
  const lanes = LANES.filter(([stream]) => spans.some((span) => span.stream === stream));
  const end = Math.max(report.time.step, ...spans.map((span) => span.start + span.duration));
  const ROW = 52;

  function paint(plot) {
    const small = plot.width < 560;
    const [left, right, top] = [small ? 76 : 100, plot.width - 10, 8];
    const bottom = top + lanes.length * ROW;
    const height = bottom + 42;
    Object.assign(plot, { left, right, top, bottom, height });
    const put = (tag, attributes, ...children) => plot.svg.appendChild(draw(tag, attributes, ...children));
    for (const [us, label] of ticks(...plot.range, plot.width / 110, TIMES)) {
      put("line", { class: "grid", x1: plot.x(us), x2: plot.x(us), y1: top, y2: bottom });
      plot.svg.append(axisLabel(plot.x(us), bottom + 17, label, plot.width));
    }
    put("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
    put("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "time since the step began, estimated");
    plot.boxes = [];
    lanes.forEach(([stream, name], lane) => {
      const y = top + lane * ROW + 8;
      const tall = ROW - 16;
      put("text", { class: "strong", x: 0, y: y + 15 }, name);
      put("text", { x: 0, y: y + 31 }, formatUs(report.time[stream]));
      for (const [index, span] of spans.entries()) {
        if (span.stream !== stream) continue;
        const [from, to] = [span.start, span.start + span.duration];
        if (to < plot.range[0] || from > plot.range[1]) continue;
        const clip = (x) => Math.max(left, Math.min(right, x));
        const x = clip(plot.x(from));
        const width = Math.max(0.8, clip(plot.x(to)) - x);
        // A hairline between neighbours that are wide enough to spare it.
        const gap = width > 4 ? 0.8 : 0;
        put("rect", { x, y, width: width - gap, height: tall, style: { fill: stream === "compute" ? tone(span.phase) : "var(--hidden)" }, "data-span": index });
        if (span.exposed > 0) {
          const begin = clip(plot.x(to - Math.min(span.exposed, span.duration)));
          put("rect", { x: begin, y, width: Math.max(0.8, x + width - begin - gap), height: tall, style: { fill: "var(--exposed)" }, "data-exposed": index });
        }
        plot.boxes.push({ index, lane, x, width });
        const inner = stream === "compute" ? width : Math.max(0, clip(plot.x(to - span.exposed)) - x);
        const times = span.times > 1 ? `\u00d7${formatCount(span.times)}` : "";
        const scope = span.scope.split("/").pop();
        const words = fitting([[scope, times].filter(Boolean).join(" "), times], inner - 10, bodyFont(11.5));
        if (words && stream === "compute") put("text", { class: "inside", x: x + 5, y: y + tall / 2 + 4 }, words);
      }
    });
    return plot;
  }

  function tell(plot, box, clientX, clientY) {
    const span = spans[box.index];
    plot.cursor.append(draw("rect", { class: "outline", x: box.x - 1, y: plot.top + box.lane * ROW + 7, width: box.width + 2, height: ROW - 14 }));
    const rows = [[null, "starts at", formatUs(span.start)], [null, "takes", formatUs(span.duration), "sum"]];
    if (span.stream !== "compute") {
      rows.push([{ class: "hidden" }, "hidden", formatUs(Math.max(0, span.duration - span.exposed))]);
      rows.push([{ class: "exposed" }, "exposed", formatUs(span.exposed)]);
    }
    if (span.times > 1) rows.push([null, "runs", `\u00d7${formatCount(span.times)}`]);
    const colour = span.stream === "compute" ? "" : `${span.stream}, `;
    showTip(clientX, clientY, [span.scope, span.op].filter(Boolean).join("/") || "(several)", [`${colour}${span.phase}`], rows);
    return steps.indexOf(box.index);
  }

  // Arrow keys go through the spans in the order in which they start.
  const steps = spans.map((_, i) => i).sort((a, b) => spans[a].start - spans[b].start);
  const middles = steps.map((i) => spans[i].start + spans[i].duration / 2);

  function at(plot, value, y, clientX, clientY, step) {
    if (step != null) {
      const box = plot.boxes.find((b) => b.index === steps[step]);
      return box && tell(plot, box, clientX, clientY);
    }
    const lane = Math.floor((y - plot.top) / ROW);
    const x = plot.x(value);
    const distance = (b) => Math.max(b.x - x, x - b.x - b.width, 0);
    const near = plot.boxes.filter((b) => b.lane === lane && distance(b) < 3);
    if (!near.length) return null;
    return tell(plot, near.reduce((a, b) => (distance(b) < distance(a) ? b : a)), clientX, clientY);
  }

  return new Plot(host, {
    label: `Timeline of an estimated step of ${formatUs(report.time.step)}, ${lanes.length} streams. Arrow keys move, plus and minus zoom.`,
    whole: [0, end], paint, at, steps: middles, start: 0,
  });
}
