// `f32[8]` is found as float32, too.
const long = (array) => array.replace(/^(b?f|u|i|c)(?=\d)/, (kind) => ({ f: "float", bf: "bfloat", i: "int", u: "uint", c: "complex" })[kind]);

// Rows as objects; what is filtered by is one lower-case text.
function readRows(report) {
  const rows = report.buffers.map(([bytes, count, array, phase, module, scope, op, source, host]) =>
    ({ bytes: bytes * count, count, array: text(array), phase: text(phase), module: text(module), scope: text(scope), op: text(op), source: text(source), host: Boolean(host), rest: false }));
  for (const [bytes, count, phase, module, host] of report.rest)
    rows.push({ bytes, count, array: "", phase: text(phase), module: text(module), scope: "", op: "", source: "", host: Boolean(host), rest: true });
  for (const b of rows) {
    b.made = [b.scope, b.op].filter(Boolean).join("/");
    b.words = [b.phase, b.module, b.made, b.source, b.array, long(b.array), b.host ? "host" : ""].join(" ").toLowerCase();
  }
  return rows;
}

for (const dot of document.querySelectorAll("[data-tone]")) dot.style.background = tone(dot.dataset.tone);

data.reports.forEach((report, number) => {
  const section = document.getElementById(`r${number + 1}`);
  const part = (name) => section.querySelector(`[data-part="${name}"]`);
  report.rows = readRows(report);
  if (report.curve) {
    report.curve.labels = report.curve.labels.map(text);
    curve(part("curve"), report);
  }
  if (report.rows.length) {
    if (part("treemap")) treemap(part("treemap"), part("trail"), report);
    buffers(part("buffers"), report);
  }
  if (report.spans.length) timeline(part("timeline"), report);
});
