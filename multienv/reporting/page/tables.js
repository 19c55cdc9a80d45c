// Decides how a table is sorted and paged.

/** Make a sortable, paged table. A column is {title, value(row), cell(row), isText, hint}; `order` is [column, isDown]. */
function sortable(label, columns, rows, order, perPage = 25) {
  let [by, isDown] = order, page = 0;
  const body = h("tbody"), pager = h("div", { class: "pager" });
  const heads = columns.map((column, at) => h("th", { scope: "col", class: column.isText ? "" : "num" },
    column.value ? h("button", { type: "button", title: column.hint, onclick: () => sort(at) }, column.title) : h("span", { title: column.hint }, column.title)));
  const sorted = () => {
    const value = columns[by].value;
    const keyed = rows.map((row) => [value(row), row]);
    const isMissing = (key) => key === null || key === undefined;
    keyed.sort(([a], [b]) => {
      if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
      const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return isDown ? -order : order;
    });
    return keyed.map(([, row]) => row);
  };
  const show = () => {
    const last = Math.max(0, Math.ceil(rows.length / perPage) - 1);
    page = Math.min(Math.max(0, page), last);
    heads.forEach((head, at) => (at === by ? head.setAttribute("aria-sort", isDown ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    body.replaceChildren(...sorted().slice(page * perPage, (page + 1) * perPage).map((row) =>
      h("tr", {}, columns.map((column, at) => h(at ? "td" : "th", { class: column.isText ? "" : "num", scope: at ? null : "row" }, column.cell(row))))));
    pager.replaceChildren(...(last ? pages(page, last, rows.length, perPage, (to) => { page = to; show(); }) : []));
  };
  const sort = (at) => {
    isDown = at === by ? !isDown : !columns[at].isText;
    by = at;
    page = 0;
    show();
  };
  show();
  return h("div", { class: "card table" },
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), body)), pager);
}

/** Make the buttons that turn pages. */
function pages(page, last, count, perPage, turn) {
  const button = (title, to) => h("button", { type: "button", class: "quiet", disabled: to < 0 || to > last || to === page, onclick: () => turn(to), "aria-label": `${title} page` }, { First: "«", Previous: "‹", Next: "›", Last: "»" }[title]);
  return [button("First", 0), button("Previous", page - 1),
    h("span", {}, `${whole(page * perPage + 1)}–${whole(Math.min(count, (page + 1) * perPage))} of ${whole(count)}`),
    button("Next", page + 1), button("Last", last)];
}

/** Draw how rollouts ended as one bar. */
function statusBar(counts, statuses) {
  const all = counts.reduce((sum, count) => sum + count, 0) || 1;
  const said = statuses.map((status, at) => [status, counts[at]]).filter(([, count]) => count);
  const words = said.map(([status, count]) => `${status} ${percent(count / all)} (${whole(count)})`).join(", ");
  return h("span", { class: "stack", role: "img", "aria-label": words, title: words },
    said.map(([status, count]) => styled(h("span", { class: status }), { flex: `${count} 0 0` })));
}

/** Draw a share as a bar under its number. */
function shareBar(value, colour) {
  return h("span", { class: "share" }, percent(value), h("span", { class: "track" }, styled(h("span", { class: `back-${colour}` }), { width: `${(value || 0) * 100}%` })));
}

/** Draw a latency: from the median, a dot, to the 95th percentile, a bar's end, on a logarithmic scale. */
function latencyRange(latency, low, high, colour) {
  if (!latency) return MISSING;
  const x = (seconds) => 6 + between(Math.log10(seconds), Math.log10(low), Math.log10(high)) * 108;
  return s("svg", { class: "range", width: 120, height: 16, "aria-hidden": "true" },
    s("line", { class: "grid", x1: 6, x2: 114, y1: 8, y2: 8 }),
    s("line", { class: `stroke-${colour} thin`, x1: x(latency.p95), x2: x(latency.longest), y1: 8, y2: 8 }),
    s("line", { class: `stroke-${colour} thick`, x1: x(latency.median), x2: x(latency.p95), y1: 8, y2: 8 }),
    s("circle", { class: `fill-${colour}`, cx: x(latency.median), cy: 8, r: 4.5 }));
}
