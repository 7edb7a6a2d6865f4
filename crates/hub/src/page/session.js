'use strict';
// What all pages share: they ask the hub with the token of this tab, or as the user whom a proxy
// names, and show the form for a token where the hub knows neither.

// Asks the hub. An error has the HTTP status of the refusal.
async function fetchAnswer(what, query) { return request(`${what}?${query}`, {}); }

// Sends a change to the hub. Users whom a proxy names must show that this page sends it.
async function sendChange(what, body) {
  const me = await fetchAnswer('me', '');
  const csrf = me?.csrf ? { 'X-Rowmill-Csrf': me.csrf } : {};
  return request(what, { method: 'POST', headers: { 'Content-Type': 'application/json', ...csrf }, body: JSON.stringify(body) });
}

async function request(path, options) {
  const token = sessionStorage.getItem('token');
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(`/hub/v1/${path}`, { ...options, headers });
  if (answer.ok) return answer.json();
  const text = await answer.text();
  let reason = text;
  // Proxies between the browser and the hub answer with any text.
  try { reason = JSON.parse(text).error ?? text; } catch { /* The text is shown as it is. */ }
  throw Object.assign(new Error(reason || `The hub answers with status ${answer.status}.`), { status: answer.status });
}

// Checks what the address asks for. `known` has the keys with their values, or null for any value.
// Returns a text for each key and value that the page does not know and therefore ignores.
function checkAddress(query, known) {
  return [...query].flatMap(([key, value]) => {
    if (key.startsWith('is.')) return [];
    if (!(key in known)) return [`The address has the unknown key “${key}”, which is ignored. Known keys: ${Object.keys(known).join(', ')}.`];
    if (known[key] === null || known[key].includes(value)) return [];
    return [`The address asks for ${key} “${value}”, which is unknown, so the usual one is shown. Known values: ${known[key].join(', ')}.`];
  });
}

function warnings(texts) { return texts.map((text) => el('p', { class: 'warning', text })); }

// Fails if this tab has no token, and no proxy between the browser and the hub names the user.
async function checkCaller() {
  if (sessionStorage.getItem('token')) return;
  const answer = await fetch('/hub/v1/me');
  if (!answer.ok || (await answer.json()) === null) throw Object.assign(new Error(''), { status: 401 });
}

// Shows an error and, if another token may help, the form for it. Without an error, hides both.
function showProblem(error) {
  const [problem, login] = ['problem', 'login'].map((id) => document.getElementById(id));
  login.hidden = error?.status !== 401 && error?.status !== 403;
  problem.textContent = error?.message ?? '';
  problem.hidden = problem.textContent === '';
}

// Shows a page now, and again with each new token and address.
function startPage(show) {
  document.getElementById('login').addEventListener('submit', (event) => {
    event.preventDefault();
    sessionStorage.setItem('token', document.getElementById('token').value.trim());
    show();
  });
  addEventListener('popstate', show);
  // `rowmill-hub demo` opens a page with its token behind the #, which no browser sends to the hub.
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given) {
    sessionStorage.setItem('token', given);
    history.replaceState(null, '', location.pathname + location.search);
  }
  show();
}
