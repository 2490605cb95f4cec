// The chat page: sends a text to each model, and shows the replies while they are generated.
// Text of models and people is inserted as text nodes only.

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "max_new_tokens", "top_k", "top_p", "seed"];
const WAYS_TO_END = {model: "ended by the model", length: "maximum length", stopped: "stopped"};

let models = [];        // as the server describes them, each with its `messages`
const running = new Set();  // an AbortController for each reply that is generated

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const isChat = (model) => model.has_template && document.querySelector("[name=mode]:checked").value === "chat";

function describeMode(model) {
  return isChat(model) ? "conversation (chat template)" : "plain text (continuation)";
}

function sampling() {
  return Object.fromEntries(NUMBERS.map((name) => [name, Number($(name).value)]));
}

function showSettings() {
  const chosen = sampling();
  $("summary").textContent = `temperature ${chosen.temperature}, at most ${chosen.max_new_tokens} tokens, seed ${chosen.seed}`;
  const chats = models.filter(isChat);
  $("system-field").hidden = chats.length === 0;
  $("prompt").placeholder = chats.length ? "Write a message" : "Text to continue; empty starts a new document";
  $("models").replaceChildren(...models.map((model) => {
    const item = element("li", "", `${model.name} `);
    item.append(element("span", "", `· ${describeMode(model)}`));
    item.title = `${model.location}\n${count(model.parameters)} parameters, ${model.device}, ${model.precision}`;
    return item;
  }));
  $("welcome-title").textContent = models.map((model) => model.name).join(" and ");
  $("welcome-text").textContent = chats.length === models.length
    ? "The tokenizer has a chat template. Write a message, and the model replies."
    : chats.length
      ? "Models with a chat template reply to your message, the others continue it as plain text."
      : "The model continues each text by itself, as the command generate does.";
  showSend();
}

function count(number) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${rounded(number / size)} ${unit}`;
  }
  return String(number);
}

const rounded = (number) => number >= 10 ? Math.round(number).toLocaleString("en") : number.toFixed(1);

function showSend() {
  const isBusy = running.size > 0;
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  $("send").disabled = !models.length || ($("prompt").value === "" && models.some(isChat));
}

function fitPrompt() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

const isAtEnd = () => $("talk").scrollHeight - $("talk").scrollTop - $("talk").clientHeight < 60;

function scrollToEnd() {
  $("talk").scrollTop = $("talk").scrollHeight;
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}

// Shows the reply of the model `number` to `asked` ({text} or {messages}) in `card`; returns the text, null after an error.
async function reply(number, asked, card) {
  const control = new AbortController();
  const place = card.querySelector(".text"), about = card.querySelector(".about");
  let text = "", tokens = 0, end = null, failure = null, began = null;
  running.add(control);
  card.classList.add("busy");
  place.setAttribute("aria-busy", "true");
  about.replaceChildren();
  try {
    const answer = await fetch("reply", {
      method: "POST", signal: control.signal, body: JSON.stringify({model: number, sampling: sampling(), ...asked}),
      headers: {"content-type": "application/json", "x-holdfast": "1"},
    });
    if (!answer.ok) {
      const body = await answer.text();
      try { failure = JSON.parse(body).message; } catch { failure = body; }
    } else {
      for await (const line of linesOf(answer.body)) {
        const event = JSON.parse(line), follows = isAtEnd();
        if (event.kind === "waiting") {
          about.textContent = `waits for ${event.ahead} other ${event.ahead === 1 ? "reply" : "replies"} of this model`;
        } else if (event.kind === "start") {
          began = performance.now();
          about.textContent = "";
          if (event.note) place.after(element("p", "note", event.note));
        } else if (event.kind === "token") {
          tokens += event.id === null ? 0 : 1;
          text += event.text;
          place.append(event.text);
        } else if (event.kind === "end") {
          end = event.reason;
        } else if (event.kind === "error") {
          failure = event.message;
        }
        if (follows) scrollToEnd();
      }
      if (end === null && failure === null) failure = "The reply broke off: the server has ended.";
    }
  } catch (error) {
    if (error.name === "AbortError") end = "stopped";
    else failure = "The server does not answer. Does its command still run?";
  }
  running.delete(control);
  card.classList.remove("busy");
  place.removeAttribute("aria-busy");
  if (failure !== null) {
    const shown = element("p", "failed", failure);
    shown.setAttribute("role", "alert");
    about.before(shown);
  }
  if (end !== null) {
    const seconds = began === null ? 0 : (performance.now() - began) / 1000;
    const rate = tokens > 1 && seconds > 0 ? `, ${rounded(tokens / seconds)} a second` : "";
    about.textContent = `${tokens} ${tokens === 1 ? "token" : "tokens"}${rate}, ${WAYS_TO_END[end]}`;
    $("status").textContent = `${models[number].name}: ${about.textContent}`;
  }
  showSend();
  return {text, end, failed: failure !== null};
}

function button(text, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function newCard(model, given) {
  const card = element("article", `reply ${isChat(model) ? "chat" : "plain"}`);
  card.append(element("h2", "name", model.name));
  const place = element("div", "text");
  place.setAttribute("aria-live", "polite");
  if (given !== undefined) place.append(element("span", "given", given));
  card.append(place, element("div", "about"));
  return card;
}

async function converse(number, card, text) {
  const messages = models[number].messages, system = $("system").value;
  messages.push({role: "user", text});
  const before = system ? [{role: "system", text: system}] : [];
  const got = await reply(number, {messages: [...before, ...messages]}, card);
  if (got.text || (got.end && got.end !== "stopped")) messages.push({role: "assistant", text: got.text});
  else messages.pop();  // a question without a reply is none that a chat template accepts
  addButtons(card);
}

async function continueText(number, card, text) {
  const got = await reply(number, {text}, card);
  addButtons(card);
  if (got.end === "length" || (got.end === "stopped" && got.text)) {
    card.querySelector(".about").append(button("Go on", () => continueText(number, card, text + got.text)));
    showSend();
  }
}

function addButtons(card) {
  const place = card.querySelector(".text");
  if (!place.textContent || !navigator.clipboard) return;
  card.querySelector(".about").append(button("Copy", async (event) => {
    await navigator.clipboard.writeText(place.textContent);
    event.target.textContent = "Copied";
  }));
}

async function send() {
  if (running.size || $("send").disabled) return;
  if (!$("ask").reportValidity()) return;
  const text = $("prompt").value;
  $("welcome").hidden = true;
  const turn = element("section", "turn");
  const cards = models.map((model) => newCard(model, isChat(model) ? undefined : text));
  if (models.some(isChat)) turn.append(element("div", "asked", text));
  const replies = element("div", "replies");
  replies.append(...cards);
  turn.append(replies);
  $("turns").append(turn);
  $("prompt").value = "";
  fitPrompt();
  const replying = models.map((model, number) => (isChat(model) ? converse : continueText)(number, cards[number], text));
  showSend();
  scrollToEnd();
  await Promise.all(replying);
  showSend();
}

function stop() {
  for (const control of running) control.abort();
}

function begin() {
  stop();
  for (const model of models) model.messages = [];
  $("turns").replaceChildren();
  $("welcome").hidden = false;
  $("prompt").focus();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("ask").addEventListener("input", showSettings);
$("prompt").addEventListener("input", fitPrompt);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running.size) { event.preventDefault(); stop(); $("prompt").focus(); }
});
$("stop").addEventListener("click", () => { stop(); $("prompt").focus(); });
$("new").addEventListener("click", begin);
for (const mode of document.querySelectorAll("[name=mode]")) mode.addEventListener("change", begin);

try {
  const about = await (await fetch("models")).json();
  models = about.models.map((model) => ({...model, messages: []}));
  for (const name of NUMBERS) $(name).value = about.sampling[name];
  document.title = `${models.map((model) => model.name).join(", ")} · Holdfast chat`;
  document.body.classList.toggle("several", models.length > 1);
  $("modes").hidden = !models.some((model) => model.has_template);
} catch {
  $("welcome-text").textContent = "The server does not answer.";
}
$("welcome").hidden = false;
if (models.length) showSettings();
$("prompt").focus();
