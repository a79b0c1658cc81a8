// A horizontal axis that both charts share: a cursor by pointer or arrow keys, and a
// stretch to look at more closely by dragging, or with + and -.
class Plot {
  // host: where; whole: [from, to]; paint(plot): draws into plot.svg and returns
  // {left, right, top, bottom}; at(value, y): shows what is there, returns where it is;
  // steps: the places that arrow keys visit; start: the first of them to show.
  constructor(host, { label, whole, paint, at, leave, steps, start }) {
    Object.assign(this, { host, whole, paint, at, leave, steps, current: start });
    this.range = [...whole];
    this.svg = draw("svg", { tabindex: 0, role: "img", "aria-label": label });
    this.reset = make("button", { class: "plain whole", type: "button", onclick: () => this.show(this.whole) }, "show all");
    host.replaceChildren(this.svg, this.reset);
    const on = (name, listener) => this.svg.addEventListener(name, listener);
    on("pointermove", (event) => this.move(event));
    on("pointerdown", (event) => this.grab(event));
    on("pointerup", (event) => this.drop(event));
    on("pointercancel", () => { this.from = null; this.leaveNow(); });
    on("pointerleave", () => this.from == null && this.leaveNow());
    on("dblclick", () => this.show(this.whole));
    on("keydown", (event) => this.key(event));
    on("focus", () => this.svg.matches(":focus-visible") && this.visit(this.current));
    on("blur", () => this.leaveNow());
    whenResized(host, () => this.render());
  }

  render() {
    const width = this.host.clientWidth;
    this.svg.replaceChildren();
    this.width = width;
    Object.assign(this, this.paint(this));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.band = this.svg.appendChild(draw("rect", { class: "chosen", y: this.top, height: this.bottom - this.top, width: 0 }));
    this.cursor = this.svg.appendChild(draw("g", {}));
    this.reset.hidden = this.range[0] === this.whole[0] && this.range[1] === this.whole[1];
  }

  x(value) {
    const [from, to] = this.range;
    return this.left + ((value - from) / (to - from || 1)) * (this.right - this.left);
  }

  value(x) {
    const share = (Math.max(this.left, Math.min(this.right, x)) - this.left) / (this.right - this.left || 1);
    return this.range[0] + share * (this.range[1] - this.range[0]);
  }

  // Where an event is, in the drawing's own units (a printed page scales it).
  place(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / (box.width || 1);
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  move(event) {
    const [x, y] = this.place(event);
    if (this.from != null) {
      const ends = [this.from, Math.max(this.left, Math.min(this.right, x))].sort((a, b) => a - b);
      this.band.setAttribute("x", ends[0]);
      this.band.setAttribute("width", ends[1] - ends[0]);
    }
    this.cursor.replaceChildren();
    if (x < this.left - 4 || x > this.right + 4) return this.leaveNow();
    const found = this.at(this, this.value(x), y, event.clientX, event.clientY);
    if (found == null) this.leaveNow();
    else this.current = found;
  }

  grab(event) {
    const [x] = this.place(event);
    if (event.button !== 0 || event.pointerType === "touch" || x < this.left || x > this.right) return;
    this.from = x;
    this.svg.setPointerCapture(event.pointerId);
  }

  drop(event) {
    if (this.from == null) return;
    const ends = [this.from, this.place(event)[0]].sort((a, b) => a - b);
    this.from = null;
    if (ends[1] - ends[0] > 6) this.show(ends.map((x) => this.value(x)));
    else this.band.setAttribute("width", 0);
  }

  // Shows a stretch, never narrower than can be told apart.
  show([from, to]) {
    const [first, last] = this.whole;
    const span = Math.min(last - first, Math.max(to - from, (last - first) / 2000));
    const start = Math.max(first, Math.min(last - span, (from + to - span) / 2));
    this.range = span >= last - first ? [...this.whole] : [start, start + span];
    hideTip();
    this.render();
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.visit(this.current + moves[event.key]);
    else if (event.key === "+" || event.key === "-") {
      const middle = this.steps[this.current];
      const half = ((this.range[1] - this.range[0]) / 2) * (event.key === "+" ? 0.5 : 2);
      this.show([middle - half, middle + half]);
    } else if (event.key === "Escape") this.show(this.whole);
    else return;
    event.preventDefault();
  }

  visit(index) {
    this.current = Math.max(0, Math.min(this.steps.length - 1, index));
    const value = this.steps[this.current];
    const [from, to] = this.range;
    if (value < from || value > to) this.show([value - (to - from) / 2, value + (to - from) / 2]);
    const box = this.svg.getBoundingClientRect();
    this.cursor.replaceChildren();
    this.at(this, value, null, box.left + this.x(value), box.top + this.height / 2, this.current);
  }

  leaveNow() {
    this.cursor?.replaceChildren();
    hideTip();
    this.leave?.();
  }
}
