'use strict';
// Shows one run or one host: tabs with issues, what to do about them, and charts over time. The
// address holds the run or host, the time and the tab, and sessionStorage the token. Names are only
// ever inserted as text.

const TABS = [['cpu', 'CPU'], ['gpu', 'GPU'], ['memory', 'Memory'], ['network', 'Network and disks'], ['application', 'Application'], ['traces', 'Traces']];
// Without a time, a run is shown from its begin to its end, and a host for a day.
const TIMES = [['', 'whole run'], ['1h', 'last hour'], ['24h', 'last day'], ['7d', 'last 7 days']];
const BYTES = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

const view = document.getElementById('view');
let shown = 0;
// Column by which orders are sorted.
let sort = '';
// The last answers, by the query that they belong to.
let known = { query: null, answer: null };

function readState() {
  const query = new URLSearchParams(location.search);
  const wrong = checkAddress(query, { run: null, host: null, since: null, until: null, tab: TABS.map(([name]) => name) });
  if (query.has('run') && query.has('host')) wrong.push('The address names a run and a host. The run is shown.');
  const subject = query.has('run') ? ['run', query.get('run')] : ['host', query.get('host') ?? ''];
  const bounds = Object.fromEntries(['since', 'until'].filter((key) => query.get(key)).map((key) => [key, query.get(key)]));
  const tab = TABS.some(([name]) => name === query.get('tab')) ? query.get('tab') : null;
  return { subject, bounds, tab, wrong };
}

function go(change) {
  const state = { ...readState(), ...change };
  const query = new URLSearchParams({ [state.subject[0]]: state.subject[1], ...state.bounds });
  if (state.tab) query.set('tab', state.tab);
  history.pushState(null, '', `?${query}`);
  show();
}

function bytes(value) {
  const at = Math.min(BYTES.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return `${amount(value / 1024 ** at)} ${BYTES[at]}`;
}

function format(unit) {
  if (unit === 'share') return percent;
  if (unit === 'bytes') return bytes;
  if (unit === 'bytes/s') return (value) => `${bytes(value)}/s`;
  return (value) => `${amount(value)} ${unit === '1' ? '' : unit}`.trim();
}

function number({ name, value, unit }) { return `${name}: ${format(unit)(value)}`; }

// Inserts a break into a line where points are missing.
function pointsOf(line, step) {
  return line.points.flatMap((point, at) => (at > 0 && point[0] - line.points[at - 1][0] > 1.5 * step ? [[point[0], null], point] : [point]));
}

function issue(finding) {
  const lost = finding.lost_gpu_hours == null ? null : el('span', { class: 'lost', text: `at most ${amount(finding.lost_gpu_hours)} GPU h` });
  const places = finding.places.map((place) => el('li', { text: `${place.place}: ${place.numbers.map(number).join(', ')}` }));
  const more = finding.place_count - finding.places.length;
  if (more > 0) places.push(el('li', { text: `and ${more} more` }));
  const limits = finding.limits.map((limit) => el('li', { text: `${number(limit)} – ${limit.why}` }));
  return el('section', { class: `issue ${finding.severity}`, 'data-rule': finding.rule },
    el('h3', null, el('span', { class: 'severity', text: finding.severity }), ` ${finding.title} `, lost),
    el('p', { text: finding.what }),
    el('p', null, el('strong', { text: 'What to do: ' }), finding.advice),
    el('details', null, el('summary', { text: `Figures and thresholds (${finding.rule})` }), el('ul', null, ...places), el('ul', { class: 'note' }, ...limits)));
}

function summary(answer) {
  const gpus = answer.gpus > 0 ? `, held for ${amount(answer.gpu_hours)} GPU h` : '';
  const texts = [`${counted(answer.gpus, 'GPU')} on ${counted(answer.hosts.length, 'host')}${gpus}, ${moment(answer.since_unix_s)} to ${moment(answer.until_unix_s)} UTC.`];
  if (answer.state) texts.push(`The run ${answer.state.ended_unix_s == null ? 'has no known end' : `ended as ${answer.state.state || 'unknown'}`}.`);
  if (answer.cpu_busy != null) texts.push(`CPUs busy: ${percent(answer.cpu_busy)}.`);
  texts.push(...answer.steps.slice(0, 4).map((one) => `${one.name}: ${amount(one.steps)} steps, ${amount(one.steps_per_s)} per second and process.`));
  return texts.join(' ');
}

// Shows where the lost hours went. The parts add up.
function losses({ lost_gpu_hours: lost, unobserved_gpu_hours: unobserved, parts }) {
  if (!(lost > 0)) return null;
  const rows = parts.map((part) => el('tr', null, el('td', { class: 'words', text: part.rule ? `${part.rule} · ${part.title}` : part.title }), el('td', { text: amount(part.gpu_hours) }), el('td', { text: percent(part.gpu_hours / lost) })));
  const maybe = unobserved > 0 ? ` In ${amount(unobserved)} further GPU h, activity was not observed.` : '';
  return el('details', { open: '' }, el('summary', { text: `Lost: ${amount(lost)} GPU h, by cause` }),
    el('p', { class: 'note', text: `Lost is held time in which GPUs or their SMs were seen to be idle. Each hour counts once, while the hours of the issues below are upper bounds.${maybe}` }),
    el('div', { class: 'scroll narrow' }, el('table', null, el('tbody', null, ...rows))));
}

function charts(answer, tab) {
  const own = answer.charts.filter((one) => one.tab === tab);
  if (own.length === 0) return [el('p', { class: 'note', text: 'No rows have values for this tab.' })];
  const time = [answer.since_unix_s, answer.until_unix_s];
  const draw = (one) => chart(one.title, one.lines.map((line) => ({ name: line.name, points: pointsOf(line, one.step_s) })), format(one.unit), time);
  return [el('div', { class: 'charts' }, ...own.map(draw))];
}

// A button that orders a trace, and what became of the order.
function orderButton([kind, name]) {
  const said = el('span', { class: 'note', role: 'status' });
  const order = async (event) => {
    event.target.disabled = true;
    try {
      await follow(await sendChange('traces', { [kind === 'run' ? 'job' : 'host']: name, why: 'ordered on the page' }), said);
    } catch (error) {
      said.textContent = error.message;
      event.target.disabled = false;
    }
  };
  const text = kind === 'run' ? 'Trace 5 steps of this run now' : 'Trace 5 steps of all processes of this host now';
  return el('p', { class: 'chips' }, el('button', { type: 'button', 'data-order': '', text, click: order }), said);
}

// Shows the progress of an order until it is over or the page shows something else, then its result.
async function follow(order, said) {
  const turn = shown;
  for (let latest = order; !latest.is_over;) {
    said.textContent = `Ordered. ${progress(latest)}`;
    await new Promise((done) => { setTimeout(done, 1000); });
    if (turn !== shown) return;
    const { orders } = await fetchAnswer('orders', new URLSearchParams({ since: '1h' }));
    latest = orders.find((one) => one.id === order.id) ?? { is_over: true };
  }
  known = { query: null, answer: null };
  show();
}

// What became of an order on its hosts.
function progress(order) {
  return order.progress.map((one) => `${one.host}: ${one.state}${one.reason ? ` (${one.reason})` : ''}`).join(', ');
}

// Shows what traces of the run, or traces of which the host was a part, say.
async function traces(state, answer) {
  const time = { since: answer.since_unix_s, until: answer.until_unix_s };
  const [kind, name] = state.subject;
  const runs = kind === 'run' ? [name] : answer.runs;
  const query = new URLSearchParams(time);
  runs.forEach((run) => query.append('run', run));
  const [findings, { orders }] = await Promise.all([
    runs.length > 0 ? fetchAnswer('findings', query) : { findings: [] }, fetchAnswer('orders', new URLSearchParams(time))]);
  const own = orders.filter((order) => (kind === 'run' ? order.run === name : order.progress.some((one) => one.host === name)));
  const link = (order) => (order.report?.startsWith('/hub/v1/traces/') ? el('a', { href: order.report, target: '_blank', rel: 'noopener', text: 'report' }) : '');
  const reports = new Map(orders.map((order) => [order.id, order]));
  const found = findings.findings.map((one) => el('section', { class: `issue ${one.severity}` },
    el('h3', null, el('span', { class: 'severity', text: one.severity }), ` ${one.title} `, el('span', { class: 'lost', text: `${amount(one.lost_gpu_hours)} GPU h` })),
    el('p', { text: `${one.run || 'Samples of all runs'}: ${one.what}` }), el('p', null, el('strong', { text: 'What to do: ' }), one.advice, ' ', link(reports.get(one.order) ?? {}))));
  const columns = [
    ['time (UTC)', (order) => moment(order.created_unix_s)], ['run', (order) => order.run], ['by', (order) => order.by], ['why', (order) => order.why],
    ['hosts', progress], ['report', (order) => order.report ?? '', link],
  ];
  const none = own.length === 0 ? el('p', { class: 'note', text: 'No traces in this time. [watch] in the configuration of the hub orders them by itself.' }) : null;
  return [orderButton(state.subject), ...found, none ?? table({ columns, rows: own, sort, sortBy: (column) => { sort = column; show(); } })];
}

async function load(state) {
  const query = new URLSearchParams({ [state.subject[0]]: state.subject[1], ...state.bounds }).toString();
  if (known.query !== query) known = { query, answer: await fetchAnswer('doctor', query) };
  return known.answer;
}

async function draw(state) {
  if (!state.subject[1]) return [el('p', { text: 'Choose a run or a host on the first page.' })];
  const answer = await load(state);
  const worst = answer.findings[0]?.tab;
  const tab = state.tab ?? worst ?? 'gpu';
  const count = (name) => answer.findings.filter((one) => one.tab === name).length;
  const tabs = TABS.map(([name, label]) => el('button', {
    type: 'button', role: 'tab', 'aria-selected': name === tab, 'data-tab': name,
    text: count(name) > 0 ? `${label} (${count(name)})` : label, click: () => go({ tab: name }),
  }));
  const isPressed = (name) => (state.bounds.until == null ? state.bounds.since ?? (state.subject[0] === 'run' ? '' : '24h') : null) === name;
  const times = TIMES.filter(([name]) => name !== '' || state.subject[0] === 'run').map(([name, label]) => el('button', { class: 'name', type: 'button', text: label, 'aria-pressed': isPressed(name), click: () => go({ bounds: name === '' ? {} : { since: name } }) }));
  const hosts = state.subject[0] === 'run' ? answer.hosts : [];
  const links = hosts.slice(0, 16).map((host) => el('button', { class: 'name', type: 'button', text: host, click: () => go({ subject: ['host', host], bounds: { since: answer.since_unix_s, until: answer.until_unix_s }, tab: null }) }));
  const runs = state.subject[0] === 'host' ? answer.runs : [];
  links.push(...runs.slice(0, 16).map((run) => el('button', { class: 'name', type: 'button', text: run, click: () => go({ subject: ['run', run], bounds: {}, tab: null }) })));
  const issues = counted(answer.findings.length, 'issue');
  const body = tab === 'traces' ? await traces(state, answer)
    : [...answer.findings.filter((one) => one.tab === tab).map(issue), ...charts(answer, tab)];
  return [
    el('p', { class: 'headline', text: `${state.subject[0]} ${state.subject[1]}: ${issues}` }),
    ...answer.notes.map((text) => el('p', { class: 'warning', text })),
    el('p', { class: 'note', text: summary(answer) }),
    el('div', { class: 'chips' }, ...times), links.length > 0 ? el('div', { class: 'chips' }, ...links) : null,
    losses(answer.losses),
    el('div', { class: 'tabs', role: 'tablist' }, ...tabs), ...body,
    el('details', null, el('summary', { text: 'What is not judged' }), el('ul', { class: 'note' }, ...answer.not_judged.map((text) => el('li', { text }))))];
}

async function show() {
  const turn = ++shown;
  let nodes = [];
  try {
    await checkCaller();
    nodes = await draw(readState());
    if (turn !== shown) return;
    showProblem(null);
  } catch (error) {
    if (turn !== shown) return;
    showProblem(error);
  }
  view.replaceChildren(...warnings(readState().wrong), ...nodes.filter((node) => node));
  document.body.dataset.shown = turn;
}

startPage(show);
