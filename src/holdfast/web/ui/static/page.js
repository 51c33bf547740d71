// Enhancements of pages that work without them: local times, keyboard shortcuts, copying.
"use strict";

const units = [[86400, "d"], [3600, "h"], [60, "min"]];

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 3600 && seconds < 21600) {
    const minutes = Math.round(seconds / 60);
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  }
  for (const [unit, name] of units) if (seconds >= 1.5 * unit) return `${Math.round(seconds / unit)} ${name}`;
  return `${Math.round(seconds)} s`;
}

function age(seconds) {
  if (seconds > -1 && seconds < 5) return "now";
  const length = Math.abs(seconds) < 10 ? `${Math.round(Math.abs(seconds))} s` : duration(Math.abs(seconds));
  return seconds > 0 ? `${length} ago` : `in ${length}`;
}

function showTimes() {
  const today = new Date().toDateString();
  for (const element of document.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const full = at.toLocaleString();
    const text = element.dataset.format === "age" ? age((Date.now() - at) / 1000)
      : at.toDateString() === today ? at.toLocaleTimeString() : full;
    if (element.textContent !== text) element.textContent = text;
    if (element.title !== full) element.title = full;
  }
}

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

// `data-key` on a control: the key that presses or focuses it. Inside `.task` it acts on the selected task.
function onKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches(".send textarea, .composer textarea")) {
    event.preventDefault();
    return event.target.form.requestSubmit();
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
  if (isTyping(event.target)) return;
  if (event.key === "j" || event.key === "k") return selectTask(event.key === "j" ? 1 : -1);
  const selected = document.querySelector(".task:focus-within") || document.querySelector(".task");
  const key = CSS.escape(event.key);
  const control = (selected && selected.querySelector(`[data-key="${key}"]`)) ||
    document.querySelector(`main > [data-key="${key}"], form[role=search] [data-key="${key}"]`);
  if (!control) return;
  event.preventDefault();
  if (control.matches("input, textarea")) return control.focus();
  control.click();
  const field = control.matches("summary") && control.parentElement.querySelector("textarea, input:not([type=hidden])");
  if (field) field.focus();
}

function selectTask(step) {
  const tasks = [...document.querySelectorAll(".task")];
  const at = tasks.findIndex((task) => task.contains(document.activeElement));
  const next = tasks[Math.max(0, Math.min(tasks.length - 1, at + step))];
  if (next) next.focus();
}

async function onClick(event) {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  event.preventDefault();
  const response = await fetch(button.dataset.copy);
  if (!response.ok) return;
  await navigator.clipboard.writeText(await response.text());
  button.textContent = "Copied";
}

// Completion of the last word: the words of the list get those before it.
function onInput({target}) {
  if (!target.list) return;
  const before = target.value.slice(0, target.value.lastIndexOf(" ") + 1);
  for (const option of target.list.options) option.value = before + option.dataset.word;
}

document.addEventListener("keydown", onKey);
document.addEventListener("input", onInput);
document.addEventListener("click", onClick);
document.addEventListener("htmx:after:swap", showTimes);
showTimes();
setInterval(showTimes, 10000);
