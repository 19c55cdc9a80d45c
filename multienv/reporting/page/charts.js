// Decides what a chart looks like: lines with bands over training steps, and stacked shares; drawn at the size they have.

const MARGIN = { top: 10, right: 14, bottom: 26, left: 46 };

/** Choose round numbers for an axis. */
function ticks(low, high, most) {
  const raw = high / most - low / most;
  if (!(raw > 0) || !Number.isFinite(raw)) return [...new Set([low, high])];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.999) || raw;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6 && found.length < 50; at += 1) found.push(at * step + 0);
  return found.length ? found : [low, high];
}

/** Return where a value lies between two others; what is too large to be subtracted is halved first. */
function between(value, low, high) {
  return high > low ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
}

/** Put a chart into a card. `chart.draw(width)` returns {node, pick}; it is drawn again where the width changes. */
function chartCard(title, note, chart, className = "") {
  const plot = h("div", { class: "plot" });
  const values = h("details", { class: "values", ontoggle: () => { if (values.open && values.children.length < 2) values.append(chart.table()); } },
    h("summary", {}, "Values"));
  const card = h("figure", { class: `card chart ${className}` },
    h("figcaption", {}, h("h3", {}, title), note ? h("p", { class: "note" }, note) : null), plot, values);
  let width = 0;
  const draw = () => {
    const now = Math.floor(plot.clientWidth);
    if (now < 60 || now === width) return;
    width = now;
    plot.replaceChildren(chart.draw(width));
  };
  new ResizeObserver(draw).observe(plot);
  card.redraw = () => { width = 0; values.open = false; while (values.children.length > 1) values.lastChild.remove(); draw(); };
  return card;
}

/** Draw axes and hover for bins of training steps; `paint(x, y)` returns what is drawn, `rows(place)` what is said. */
function frame({ width, height, bins, low, high, format, label, paint, rows, marks, margin = MARGIN, most = 4 }) {
  const right = width - margin.right, bottom = height - margin.bottom;
  const middle = (bin) => (bin.first + bin.last) / 2;
  const first = bins[0].first, last = bins[bins.length - 1].last;
  const x = (place) => margin.left + between(middle(bins[place]), first, last) * (right - margin.left);
  const y = (value) => bottom - between(value, low, high) * (bottom - margin.top);
  const grid = ticks(low, high, most).map((at) => [
    s("line", { class: "grid", x1: margin.left, x2: right, y1: y(at), y2: y(at) }),
    s("text", { class: "tick", x: margin.left - 8, y: y(at) + 4, "text-anchor": "end" }, format(at)),
  ]);
  const across = first === last ? [first] : ticks(first, last, Math.max(2, Math.min(6, Math.floor(width / 90)))).filter(Number.isInteger);
  const below = across.map((at) => s("text", { class: "tick", x: margin.left + between(at, first, last) * (right - margin.left), y: height - 8, "text-anchor": "middle" }, whole(at)));
  const cross = s("line", { class: "cross", y1: margin.top, y2: bottom, hidden: true });
  const dots = s("g");
  const chart = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": `${label}. Arrow keys move along the steps.` },
    grid, below, paint(x, y), cross, dots);
  let at = -1;
  const point = (place) => {
    at = Math.max(0, Math.min(bins.length - 1, place));
    fill(cross, { x1: x(at), x2: x(at) }, []).removeAttribute("hidden");
    dots.replaceChildren(...marks(at).map((mark) => s("circle", { cx: x(at), cy: y(mark.value), r: 4, class: `dot fill-${mark.colour}` })));
    const box = chart.getBoundingClientRect();
    showTip(box.left + x(at), box.top + margin.top, [h("strong", {}, steps(bins[at].first, bins[at].last)), ...rows(at)]);
  };
  const leave = () => { cross.setAttribute("hidden", ""); dots.replaceChildren(); hideTip(); };
  const nearest = (event) => {
    const wanted = event.clientX - chart.getBoundingClientRect().left;
    return bins.reduce((best, _, place) => (Math.abs(x(place) - wanted) < Math.abs(x(best) - wanted) ? place : best), 0);
  };
  fill(chart, {
    onpointermove: (event) => point(nearest(event)), onpointerleave: leave, onblur: leave,
    onkeydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, Home: -bins.length, End: bins.length }[event.key];
      if (move) { event.preventDefault(); point((at >= 0 ? at : move > 0 ? -1 : bins.length) + move); }
      if (event.key === "Escape") leave();
    },
  }, []);
  return chart;
}

function path(points) {
  return points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** A chart of lines. A series is {name, look, points: [{place, value, low, high, count}], isAsked}. */
function lineChart({ label, bins, series, format, say = format, isShare = false, height = 220 }) {
  const values = () => series().flatMap((each) => each.points.flatMap((point) => [point.value, point.low, point.high])).filter(Number.isFinite);
  const at = (each, place) => each.points.find((point) => point.place === place);
  const draw = (width) => {
    const known = values();
    if (!known.length) return h("p", { class: "empty" }, "Nothing to draw.");
    let low = Math.min(0, ...known), high = isShare ? Math.max(1, ...known) : Math.max(...known);
    if (low === high) high = low + 1;
    const marked = ticks(low, high, 4), step = marked.length > 1 ? marked[1] - marked[0] : 0;
    const [below, above] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
    if (Number.isFinite(below) && Number.isFinite(above) && below < above) [low, high] = [below, above];
    const paint = (x, y) => series().map((each) => {
      const colour = each.look.colour, own = each.points.filter((point) => Number.isFinite(point.value));
      const banded = own.filter((point) => Number.isFinite(point.low));
      const band = banded.length > 1 ? path([...banded.map((p) => [x(p.place), y(p.high)]), ...banded.reverse().map((p) => [x(p.place), y(p.low)])]) + "Z" : null;
      return [
        band ? s("path", { class: `band fill-${colour}`, d: band }) : null,
        s("path", { class: `line stroke-${colour}${each.isAsked ? " asked" : ""}`, d: path(own.map((p) => [x(p.place), y(p.value)])), "stroke-dasharray": each.isAsked ? undefined : each.look.dash || undefined }),
        each.isAsked || own.length > 30 ? null : own.map((p) => s("circle", { class: `fill-${colour}`, cx: x(p.place), cy: y(p.value), r: own.length === 1 ? 3.5 : 2.2 })),
      ];
    });
    const found = (place) => series().map((each) => [each, at(each, place)]).filter(([, point]) => point && Number.isFinite(point.value));
    const rows = (place) => found(place).sort((a, b) => b[1].value - a[1].value).slice(0, 14).map(([each, point]) => tipRow(each, say(point.value), note(point)));
    const note = (point) => (Number.isFinite(point.low) && point.low < point.high ? `${say(point.low)} to ${say(point.high)}` : "");
    const marks = (place) => found(place).filter(([each]) => !each.isAsked).map(([each, point]) => ({ value: point.value, colour: each.look.colour }));
    return frame({ width, height, bins, low, high, format, label, paint, rows, marks });
  };
  const table = () => valuesTable(bins, series().map((each) => [each.name, (place) => { const point = at(each, place); return point ? say(point.value) : MISSING; }]));
  return { draw, table };
}

/** A chart of shares that add up to one: what each bin's rollouts came to. */
function statusChart({ label, bins, points, statuses, height = 112 }) {
  const of = new Map(points.filter((point) => point.rollouts).map((point) => [point.place, point]));
  const places = [...of.keys()];
  const below = (place, upto) => of.get(place).statuses.slice(0, upto).reduce((sum, count) => sum + count, 0) / of.get(place).rollouts;
  const draw = (width) => {
    if (!places.length) return h("p", { class: "empty" }, "No rollouts.");
    const paint = (x, y) => statuses.map((status, at) => {
      const edge = (upto) => places.map((place) => [x(place), y(below(place, upto))]);
      if (places.length > 1) return s("path", { class: `area ${status}`, d: path([...edge(at + 1), ...edge(at).reverse()]) + "Z" });
      const [[middle, top]] = edge(at + 1), [[, bottom]] = edge(at);
      return s("rect", { class: `area ${status}`, x: middle - 14, width: 28, y: top, height: Math.max(0, bottom - top) });
    });
    const rows = (place) => (of.has(place) ? statuses.map((status, at) => [status, of.get(place).statuses[at]]).filter(([, count]) => count)
      .map(([status, count]) => h("div", { class: "tip-row" }, h("span", { class: `block ${status}` }), h("span", {}, status), h("b", {}, percent(count / of.get(place).rollouts)), h("i", {}, whole(count)))) : []);
    const margin = { top: 6, right: 10, bottom: 22, left: 40 };
    return frame({ width, height, bins, low: 0, high: 1, format: percent, label, paint, rows, marks: () => [], margin, most: 2 });
  };
  const table = () => valuesTable(bins, statuses.map((status, at) => [status, (place) => (of.has(place) ? percent(of.get(place).statuses[at] / of.get(place).rollouts) : MISSING)]));
  return { draw, table };
}

function valuesTable(bins, columns) {
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "step"), columns.map(([name]) => h("th", { scope: "col", class: "num" }, text(name))))),
    h("tbody", {}, bins.map((bin, place) => h("tr", {}, h("th", { scope: "row" }, bin.first === bin.last ? whole(bin.first) : `${whole(bin.first)}–${whole(bin.last)}`),
      columns.map(([, cell]) => h("td", { class: "num" }, cell(place))))))));
}

function tipRow(series, value, note) {
  return h("div", { class: "tip-row" }, swatch(series.look), h("span", {}, text(series.name)), h("b", {}, value), note ? h("i", {}, note) : null);
}

function showTip(left, top, rows) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const beside = left + 16 + box.width > innerWidth ? left - box.width - 16 : left + 16;
  styled(tip, { left: `${Math.max(4, beside)}px`, top: `${Math.max(4, Math.min(top, innerHeight - box.height - 4))}px` });
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}
