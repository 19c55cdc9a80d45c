// Decides how one episode is laid out: what it was, its tool calls, and the conversation as the policy had it.

/** Lay out an episode. */
function episodeView(page, episode, seeTask) {
  const facts = [
    ["Reward", reward(episode.reward)], ["Training step", episode.step === null ? null : whole(episode.step)], ["Group", episode.group === null ? null : whole(episode.group)],
    ["Tokens", whole(episode.tokens)], ["Tool calls", whole(episode.calls)], ["Opened in", episode.open_s ? duration(episode.open_s) : null],
    ["Began", episode.started_at ? moment(episode.started_at) : null], ["Retries", episode.retries ? whole(episode.retries) : null],
    ["Late calls", episode.late ? whole(episode.late) : null], ["Rank", episode.rank ? whole(episode.rank) : null], ["Session", episode.session ? h("code", {}, text(episode.session)) : null],
  ].filter(([, value]) => value !== null);
  const steps = h("div", { hidden: page.isTalk }, partsOf(episode.steps, episode.steps_left_out, stepView, "The policy called no tool."));
  const talk = h("div", { hidden: !page.isTalk }, partsOf(episode.messages, episode.messages_left_out, messageView, "The record has no completion of this episode."));
  const tab = (label, own, other) => h("button", { type: "button", class: "tab", "aria-pressed": String(!own.hidden), onclick: (event) => {
    own.hidden = false;
    other.hidden = true;
    page.isTalk = own === talk; // the next episode is read in the same way
    for (const each of event.currentTarget.parentNode.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
  } }, label);
  const before = episode.steps_left_out + episode.steps.length, said = episode.messages_left_out + episode.messages.length;
  return [
    h("header", {}, h("div", { class: "title" }, swatch(page.looks.get(episode.environment)), h("h3", {}, text(episode.task)), pill(episode.status), episode.phase === "evaluation" ? h("span", { class: "pill" }, "evaluation") : null,
      h("button", { type: "button", class: "quiet", onclick: seeTask }, "All of this task")),
    episode.reason || episode.error ? h("p", { class: `reason ${episode.status}` }, episode.error ? h("code", {}, text(episode.error)) : null, " ", text(episode.reason)) : null,
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
    h("div", { class: "tabs", role: "group", "aria-label": "What to read" }, tab(plural(before, "tool call"), steps, talk), tab(plural(said, "message"), talk, steps)),
    steps, talk,
  ];
}

/** Lay out the first and the last parts, and say how many between them are left out. */
function partsOf(parts, leftOut, view, nothing) {
  if (!parts.length) return h("p", { class: "empty" }, nothing);
  const views = parts.map(view);
  if (leftOut) views.splice(parts.length / 2, 0, h("p", { class: "empty" }, `${whole(leftOut)} more in between are left out here; the record has them.`));
  return views;
}

function stepView(step) {
  const name = step.flags.includes("grading") ? `${step.tool} (grades the last message)` : step.tool;
  return h("section", { class: `step ${step.flags.join(" ")}` },
    h("h4", {}, h("span", { class: "ordinal" }, whole(step.number)), h("code", {}, text(name)), step.flags.filter((flag) => flag !== "grading").map((flag) => h("span", { class: `pill ${flag}` }, flag)),
      h("span", { class: "end" }, step.reward === null ? null : h("b", { class: signOf(step.reward) }, `reward ${reward(step.reward)}`), step.duration_s ? h("span", { class: "note" }, duration(step.duration_s)) : null)),
    step.arguments === "{}" ? null : block("arguments", step.arguments, "json"), step.text ? block("shown", step.text) : h("p", { class: "note" }, "Nothing was shown."),
    step.metadata && step.metadata !== "{}" ? h("details", {}, h("summary", {}, "Metadata"), block("metadata", step.metadata, "json")) : null);
}

function messageView(message) {
  return h("section", { class: "message" }, h("h4", {}, h("span", { class: `role ${["assistant", "tool", "user", "system"].includes(message.role) ? message.role : ""}` }, text(message.role) || "message"), message.name ? h("code", {}, text(message.name)) : null),
    message.thought ? block("thought", message.thought, "thought") : null,
    message.content ? block("content", message.content, message.role === "tool" ? "" : "prose") : null,
    message.calls.map((call) => h("div", { class: "call" }, h("p", {}, "calls ", h("code", {}, text(call.tool))), block("arguments", call.arguments, "json"))),
    message.rest ? h("details", {}, h("summary", {}, "Other fields"), block("fields", message.rest, "json")) : null);
}

/** Show a text as it is: its lines, and nothing it could mean. */
function block(label, value, kind = "") {
  return h("pre", { class: kind, "aria-label": label, dir: "auto" }, text(value));
}
