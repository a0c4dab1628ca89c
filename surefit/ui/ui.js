// What the pages do: live parts, sorting and filtering, the form, stop and resume, chat.
// Parts come as HTML that the server has escaped; scripts in them cannot run (see the CSP).
const $ = (id) => document.getElementById(id);
const note = (text) => { $("note").textContent = text; };

async function post(address, body) {
  const answer = await fetch(address, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body ?? {}),
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  try { throw new Error(JSON.parse(text).error); } catch (error) {
    throw error instanceof SyntaxError ? new Error(text) : error;
  }
}

function place(parts) {
  let isNew = false;
  for (const [id, html] of parts) {
    if (html === null) continue;
    let part = $(id);
    if (!part) {
      part = document.createElement("section");
      part.id = id;
      $("parts").append(part);
      isNew = true;
    }
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((each, n) => { each.open = open[n] ?? each.open; });
  }
  if (!$("parts")) return arrange();
  if (isNew) for (const [id] of parts) $("parts").append($(id));
  const ids = new Set(parts.map(([id]) => id));
  for (const part of [...$("parts").children]) if (!ids.has(part.id)) part.remove();
}

function listen(address) {
  const before = $("note").textContent;
  let source;
  const open = () => {
    if (source && source.readyState !== EventSource.CLOSED) return;
    source = new EventSource(address);
    source.onmessage = (event) => { note(before); place(JSON.parse(event.data)); };
    source.onerror = () => note("The page is not connected to surefit ui; it tries again.");
  };
  // A hidden page gives its connection back: a browser has six to one server.
  document.addEventListener("visibilitychange", () => document.hidden ? source.close() : open());
  if (!document.hidden) open();
}

// The list: sorted by a column, filtered by words; both survive new rows.
let sortedBy = null, downwards = false;
const chosen = new Set();

function arrange() {
  const rows = [...$("rows").children];
  if (sortedBy !== null) {
    const value = (row) => row.children[sortedBy]?.dataset.value ?? "";
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!x || !y) return x ? -1 : y ? 1 : 0; // what is not known comes last
      const order = x - y || (isNaN(x - y) ? x.localeCompare(y) : 0);
      return downwards ? -order : order;
    });
    $("rows").append(...rows);
  }
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    row.style.display = row.hidden ? "none" : "";
    if (!row.hidden) shown += 1;
    const box = row.querySelector("input");
    if (box) box.checked = chosen.has(box.value);
  }
  $("shown").textContent = words.length ? `${shown} of ${rows.length} runs` : "";
  $("comparing").disabled = chosen.size < 2;
}

function startList() {
  $("filter").addEventListener("input", arrange);
  $("rows").addEventListener("change", (event) => {
    chosen[event.target.checked ? "add" : "delete"](event.target.value);
    arrange();
  });
  document.querySelectorAll("[data-sort]").forEach((button, place) => {
    button.addEventListener("click", () => {
      downwards = sortedBy === place + 1 && !downwards;
      sortedBy = place + 1;
      document.querySelectorAll("th").forEach((head) => head.removeAttribute("aria-sort"));
      button.parentElement.setAttribute("aria-sort", downwards ? "descending" : "ascending");
      arrange();
    });
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|TEXTAREA/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    $("filter").focus();
  });
  arrange();
}

// The form: findings stand beside the fields that they concern.
function startForm() {
  const form = $("new"), buttons = form.querySelectorAll("button");
  const send = async (address, done) => {
    const began = Date.now();
    for (const button of buttons) button.disabled = true;
    const clock = setInterval(() => {
      $("verdict").textContent = `working: ${Math.round((Date.now() - began) / 1000)} s`;
    }, 500);
    try {
      const filled = [...new FormData(form)].filter(([, value]) => value.trim());
      const answer = await post(address, Object.fromEntries(filled));
      clearInterval(clock);
      done(await answer.json());
    } catch (error) {
      clearInterval(clock);
      $("verdict").textContent = "";
      note(error.message);
      $("note").scrollIntoView();
    } finally {
      clearInterval(clock);
      for (const button of buttons) button.disabled = false;
    }
  };
  $("check").addEventListener("click", () => send("/check", (found) => {
    $("verdict").innerHTML = found.verdict;
    $("others").innerHTML = `<div class=found>${found.fields[""] ?? ""}</div>${found.plan}`;
    for (const place of form.querySelectorAll(".found")) {
      place.innerHTML = found.fields[place.dataset.key] ?? "";
      if (place.innerHTML) place.closest("details")?.setAttribute("open", "");
    }
    form.querySelector(".found p.error")?.scrollIntoView({ block: "center" });
  }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send("/train", (found) => { location = found.go; });
  });
}

// The conversation is kept here; each message goes out with what was said before it.
function startChat() {
  let said = [];
  const show = (who, text) => {
    const line = document.createElement("p");
    line.className = who;
    line.textContent = text;
    $("talk").append(line);
    return line;
  };
  $("forget").addEventListener("click", () => { said = []; $("talk").replaceChildren(); });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("say").requestSubmit();
  });
  $("say").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = $("message").value, button = $("say").querySelector("button");
    if (!text.trim() || button.disabled) return;
    show("user", text);
    const line = show("assistant", "…");
    button.disabled = true;
    $("message").value = "";
    try {
      const body = { history: [...said, text], system: $("system").value };
      const answer = await post(location.pathname.replace("/chat/", "/say/"), body);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let whole = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        whole += part.value;
        line.textContent = whole;
      }
      line.textContent = whole || "(an empty answer)";
      if (whole) said.push(text, whole);
    } catch (error) {
      line.textContent = error.message;
    }
    button.disabled = false;
    $("message").focus();
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button) return;
  button.disabled = true;
  try {
    await post(location.pathname.replace("/run/", `/do/${button.dataset.post}/`));
  } catch (error) {
    note(error.message);
    button.disabled = false;
  }
});
if ($("rows")) startList();
if ($("new")) startForm();
if ($("say")) startChat();
if (document.body.dataset.live) listen(document.body.dataset.live);
