'use strict';
// Shows where the GPU time of a fleet goes. The address holds what is shown, and sessionStorage the
// token. Names of jobs, users and hosts are untrusted, so they are only ever inserted as text.

const DIMENSIONS = ['workflow', 'user', 'run', 'pool', 'model', 'host'];
const CONTROLS = [
  ['since', 'Time', [['1h', 'last hour'], ['24h', 'last day'], ['7d', 'last 7 days'], ['30d', 'last 30 days'], ['90d', 'last 90 days']], '24h'],
  ['weight', 'Weight', [['gpu', 'GPUs'], ['sm', 'SMs'], ['flops', 'FLOP/s'], ['price', 'price']], 'gpu'],
  ['bound', 'Not observed', [['lower', 'apart'], ['upper', 'counts as active']], 'lower'],
  ['by', 'List by', DIMENSIONS.map((name) => [name, name]), 'workflow'],
];
// Divisor and unit of sums, and of their rates over time.
const UNITS = { gpu: [3600, 'GPU h'], sm: [3600, 'SM h'], flops: [1e18, 'EFLOP'], price: [1, 'price'] };
const RATES = { gpu: [1, 'GPUs'], sm: [1, 'SMs'], flops: [1e15, 'PFLOP/s'], price: [1 / 3600, 'price per hour'] };
const STEPS = { '1h': 'minute', '24h': 'hour', '7d': 'hour', '30d': 'day', '90d': 'day' };
// Layers with the parts that are lost before them.
const LAYERS = [['deployed', []], ['schedulable', [0]], ['on busy hosts', [1]], ['allocated', [2]], ['GPU busy', [4, 3]], ['SM active', [6, 5]]];
const ACTIVE = 7;
// Width of a layer before its losses leave it.
const STUB = 14;
const KINDS = ['loss', 'loss', 'loss', 'unknown', 'idle', 'unknown', 'idle', 'flow'];

const view = document.getElementById('view');
let shown = 0;

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'text') node.textContent = value;
    else if (name === 'click') node.addEventListener('click', value);
    else if (value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function el(tag, properties, ...children) { return build(document.createElement(tag), properties, children); }

function svg(tag, properties, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children);
}

// Reads what is shown from the address.
function readState() {
  const query = new URLSearchParams(location.search);
  const state = { part: Number(query.get('part') ?? -1), selection: [] };
  for (const [key, , options, usual] of CONTROLS) {
    const value = query.get(key) ?? usual;
    state[key] = options.some(([option]) => option === value) ? value : usual;
  }
  for (const [key, value] of query) {
    if (key.startsWith('is.')) state.selection.push([key.slice(3), value]);
  }
  return state;
}

function go(change) {
  const state = { ...readState(), ...change };
  const query = new URLSearchParams(CONTROLS.map(([key]) => [key, state[key]]));
  if (state.part >= 0) query.set('part', state.part);
  state.selection.forEach(([dimension, name]) => query.append(`is.${dimension}`, name));
  history.pushState(null, '', `?${query}`);
  show();
}

// Whether a proxy between the browser and the hub has named the user.
async function isKnown() {
  const answer = await fetch('/hub/v1/me');
  return answer.ok && (await answer.json()) !== null;
}

async function ask(state, options) {
  const query = new URLSearchParams({ since: state.since, weight: state.weight, ...options });
  state.selection.forEach(([dimension, name]) => query.append(dimension, name));
  const token = sessionStorage.getItem('token');
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`/hub/v1/sums?${query}`, { headers });
  if (answer.ok) return answer.json();
  throw Object.assign(new Error(await answer.text()), { status: answer.status });
}

// Returns the parts of a group in the unit of the page.
function partsOf(state, group) {
  const parts = group.parts.map((part) => part / UNITS[state.weight][0]);
  if (state.bound === 'upper') {
    parts[ACTIVE] += parts[3] + parts[5];
    parts[3] = parts[5] = 0;
  }
  return parts;
}

function amount(value) {
  const digits = value >= 100 ? 0 : value >= 1 ? 1 : 3;
  return value.toLocaleString('en', { maximumFractionDigits: digits });
}

function percent(share) { return share == null || !Number.isFinite(share) ? '–' : `${(share * 100).toFixed(1)} %`; }

function range([low, high]) { return percent(low) === percent(high) ? percent(low) : `${percent(low)} to ${percent(high)}`; }

function sum(values) { return values.reduce((total, value) => total + value, 0); }

function showControls(state) {
  const controls = CONTROLS.flatMap(([key, label, options]) => {
    const select = el('select', { id: `control-${key}` }, ...options.map(([value, text]) => el('option', { value, text })));
    select.value = state[key];
    select.addEventListener('change', () => go({ [key]: select.value }));
    return [el('label', { for: select.id, text: label }), select];
  });
  document.getElementById('controls').replaceChildren(...controls);
}

// Draws the band from deployed GPUs to active SMs. Losses leave it downwards.
function sankey(state, total) {
  const parts = partsOf(state, total);
  const all = sum(parts);
  const [width, height, left, step, top, base] = [1200, 200, 10, 200, 40, 290];
  const scale = height / all;
  const hatch = svg('pattern', { id: 'hatch', width: 8, height: 8, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    svg('line', { class: 'hatch', x1: 0, x2: 0, y1: 0, y2: 8 }));
  const [bands, texts] = [[], []];
  const write = (x, y, text, soft) => texts.push(svg('text', { class: soft ? 'soft' : 'halo', x, y, text }));
  const band = (part, path, label, x, y) => {
    const choose = () => go({ part: state.part === part ? -1 : part });
    const name = `${total.names[part]} ${total.shares[part]}`;
    const group = svg('g', { class: `band${state.part === part ? ' chosen' : ''}`, role: 'button', tabindex: 0, 'aria-label': name, 'data-part': part, click: choose },
      svg('path', { class: KINDS[part], d: path }), svg('title', { text: name }));
    write(x, y, name);
    write(x, y + 16, label, true);
    group.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(); } });
    bands.push(group);
  };
  const unit = UNITS[state.weight][1];
  let remaining = all;
  let bottom = 0;
  LAYERS.forEach(([name, lost], at) => {
    const x = left + (at - 1) * step;
    const losses = lost.filter((one) => parts[one] > 0).map((part) => {
      remaining -= parts[part];
      return [part, parts[part] * scale, top + remaining * scale];
    });
    let y = base;
    // The loss that leaves at the lower edge ends below the others, so that they do not cross.
    for (const [part, size, from] of losses.reverse()) {
      const [start, middle, end] = [x + STUB, x + step * 0.45, x + step * 0.92];
      band(part, `M${start} ${from}C${middle} ${from} ${middle} ${y} ${end} ${y}V${y + size}C${middle} ${y + size} ${middle} ${from + size} ${start} ${from + size}Z`,
        `${amount(parts[part])} ${unit}`, x + 50, y + size + 18);
      y += size + 46;
      bottom = Math.max(bottom, y);
    }
    if (at > 0) bands.push(svg('rect', { class: 'flow', x, y: top, width: step, height: Math.max(0, remaining * scale) }));
    bands.push(svg('rect', { class: 'flow', x: left + at * step, y: top, width: STUB, height: Math.max(0, remaining * scale) }));
    write(left + at * step, top - 20, name);
    write(left + at * step, top - 5, percent(remaining / all), true);
  });
  const end = left + (LAYERS.length - 1) * step;
  band(ACTIVE, `M${end} ${top}h150v${remaining * scale}h-150Z`, `${amount(parts[ACTIVE])} ${unit}`, end, top + Math.max(remaining * scale, 4) + 18);
  const box = { viewBox: `0 0 ${width} ${Math.max(bottom, base)}`, role: 'group', 'aria-label': 'Deployed GPU time by what it was used for' };
  return svg('svg', box, svg('defs', null, hatch), ...bands, ...texts);
}

// Draws a value of each step of time.
function chart(title, points, format) {
  const [width, height, left, bottom] = [560, 150, 64, 22];
  const highest = Math.max(...points.map(([, value]) => value ?? 0), 1e-9);
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const x = (time) => left + ((time - first) / Math.max(1, last - first)) * (width - left - 8);
  const y = (value) => 8 + (1 - value / highest) * (height - bottom - 8);
  const known = points.filter(([, value]) => value != null);
  const path = known.map(([time, value], at) => `${at ? 'L' : 'M'}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join('');
  const moment = (time) => new Date(time * 1000).toISOString().slice(5, 16).replace('T', ' ');
  return el('figure', null, el('h2', { text: title }),
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
      ...[0, highest].map((value) => svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(value), y2: y(value) })),
      ...[0, highest].map((value) => svg('text', { class: 'soft', x: left - 6, y: y(value) + 4, 'text-anchor': 'end', text: format(value) })),
      svg('text', { class: 'soft', x: left, y: height - 6, text: `${moment(first)} UTC` }),
      svg('text', { class: 'soft', x: width - 8, y: height - 6, 'text-anchor': 'end', text: moment(last) }),
      svg('path', { class: 'line', d: path })));
}

// Draws a dot for each group of the list, by its allocated time and its efficiency.
function scatter(state, answer) {
  const [width, height, left, bottom] = [560, 170, 64, 36];
  const held = (group) => sum(partsOf(state, group).slice(3));
  const groups = answer.groups.filter((group) => held(group) > 0);
  const most = Math.max(...groups.map(held), 1e-9);
  const title = `Each ${state.by}: allocated ${UNITS[state.weight][1]} and SM active`;
  const y = (share) => 8 + (1 - share) * (height - bottom - 8);
  const dots = groups.map((group) => {
    const share = partsOf(state, group)[ACTIVE] / held(group);
    const text = `${group[state.by]}: ${amount(held(group))} ${UNITS[state.weight][1]}, ${percent(share)}`;
    const x = left + (held(group) / most) * (width - left - 16);
    return svg('circle', { class: 'dot', cx: x, cy: y(share), r: 4, tabindex: 0, click: () => choose(state, group[state.by]) }, svg('title', { text }));
  });
  const ends = [[0, 'start'], [most, 'end']].map(([value, anchor]) => svg('text', { class: 'soft', x: anchor === 'end' ? width - 8 : left, y: height - 18, 'text-anchor': anchor, text: amount(value) }));
  return el('figure', null, el('h2', { text: title }), svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
    ...[0, 1].map((share) => svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(share), y2: y(share) })),
    ...[0, 1].map((share) => svg('text', { class: 'soft', x: left - 6, y: y(share) + 4, 'text-anchor': 'end', text: percent(share) })), ...ends, ...dots));
}

function list(state, answer) {
  const unit = UNITS[state.weight][1];
  const part = state.part >= 0 && state.part < ACTIVE ? state.part : -1;
  const rows = answer.groups.map((group) => {
    const parts = partsOf(state, group);
    const lost = part < 0 ? parts[4] + parts[6] : parts[part];
    return { group, parts, name: group[state.by], held: sum(parts.slice(3)), lost, unknown: parts[3] + parts[5] };
  });
  rows.sort((a, b) => (part < 0 ? b.held - a.held : b.lost - a.lost));
  const lost = sum(rows.map((row) => row.lost));
  const lostName = part < 0 ? 'lost' : answer.part_names[part];
  const head = [state.by, unit, `allocated ${unit}`, 'GPU busy', 'SM active', `not observed ${unit}`, `${lostName} ${unit}`, 'share of it'];
  const cells = (row) => {
    const { allocated_s: allocated, busy_s: busy } = row.group.sums;
    const name = row.name === '' ? el('span', { text: '(not allocated)' })
      : el('button', { class: 'name', type: 'button', text: row.name, click: () => choose(state, row.name) });
    return [name, amount(sum(row.parts)), amount(row.held), percent(busy / allocated), row.group.efficiency ? range(row.group.efficiency) : '–', amount(row.unknown), amount(row.lost), percent(row.lost / lost)];
  };
  const title = part < 0 ? `By ${state.by}` : `${answer.part_names[part]}, by ${state.by}`;
  return [
    el('h2', { text: title }),
    el('div', { class: 'scroll' }, el('table', null,
      el('thead', null, el('tr', null, ...head.map((text) => el('th', { text })))),
      el('tbody', null, ...rows.map((row) => el('tr', null,
        ...cells(row).map((cell) => (cell instanceof Node ? el('td', null, cell) : el('td', { text: cell })))))))),
    answer.groups_left_out > 0 ? el('p', { class: 'note', text: `${answer.groups_left_out} smaller groups are not listed.` }) : null,
  ];
}

// Selects a member of the list, and lists it by the next dimension.
function choose(state, name) {
  const selection = [...state.selection.filter(([dimension]) => dimension !== state.by), [state.by, name]];
  const next = ['workflow', 'user', 'run'].find((one) => !selection.some(([dimension]) => dimension === one));
  go({ selection, by: next ?? 'host' });
}

function notes(state, answer) {
  const texts = ['Deployed are GPUs of hosts that report rows. Hosts that report nothing are unknown.'];
  const names = [...answer.unknown_weight].join(', ');
  if (names) texts.push(`The weight of these models is unknown, so their time is left out: ${names}.`);
  if (answer.hours_missing) texts.push(`${answer.hours_missing} hours are missing, because their rows were deleted.`);
  const unknown = sum([answer.total.parts[3], answer.total.parts[5]]);
  if (unknown > 0) texts.push('Time that was not observed may have been idle or active, so efficiencies are ranges.');
  return texts.map((text) => el('p', { class: 'note', text }));
}

async function show() {
  const turn = ++shown;
  const state = readState();
  showControls(state);
  const problem = document.getElementById('problem');
  const login = document.getElementById('login');
  try {
    if (!sessionStorage.getItem('token') && !await isKnown()) throw Object.assign(new Error(''), { status: 401 });
    const [answer, times] = await Promise.all([ask(state, { by: state.by }), ask(state, { step: STEPS[state.since] })]);
    if (turn !== shown) return;
    login.hidden = problem.hidden = true;
    render(state, answer, times);
  } catch (error) {
    if (turn !== shown) return;
    login.hidden = error.status !== 401;
    problem.textContent = error.message;
    problem.hidden = error.message === '';
    view.replaceChildren();
  }
  document.body.dataset.shown = turn;
}

function render(state, answer, times) {
  const chips = state.selection.map(([dimension, name], at) => el('button', {
    type: 'button', text: `${dimension}: ${name} ×`, 'aria-label': `Remove ${dimension} ${name}`,
    click: () => go({ selection: state.selection.filter((_, other) => other !== at) }),
  }));
  const bar = el('div', { class: 'chips' }, ...chips);
  if (!(answer.total.sums.deployed_s > 0)) {
    view.replaceChildren(bar, el('p', { class: 'headline', text: 'No rows of GPUs in this time.' }), ...notes(state, answer));
    return;
  }
  const exact = partsOf(state, answer.total);
  const all = sum(exact);
  // Rounded as the hub does, so that the parts add up to 100.0; the upper bound moves parts.
  const shares = state.bound === 'lower' ? answer.total.percent.map((share) => `${share.toFixed(1)} %`) : exact.map((part) => percent(part / all));
  const total = { ...answer.total, shares, names: answer.part_names };
  const whole = [exact[ACTIVE] / all, (exact[ACTIVE] + exact[3] + exact[5]) / all];
  const points = times.groups.map((group) => [group.start_unix_s, partsOf(state, group)]);
  const [divisor, rate] = RATES[state.weight];
  const seconds = (start) => Math.min(times.until_unix_s, start + times.step_s) - Math.max(times.since_unix_s, start);
  const rates = times.groups.map((group) => [group.start_unix_s, group.sums.allocated_s / seconds(group.start_unix_s) / divisor]);
  view.replaceChildren(bar,
    el('p', { class: 'headline', text: `${range(whole)} of the deployed time had active SMs` }),
    ...notes(state, answer), sankey(state, total),
    el('div', { class: 'charts' },
      chart(`Allocated ${rate}`, rates, amount),
      chart('SM active of allocated', points.map(([time, parts]) => {
        const held = sum(parts.slice(3));
        return [time, held > 0 ? parts[ACTIVE] / held : null];
      }), percent),
      scatter(state, answer)),
    ...list(state, answer).filter((node) => node));
}

document.getElementById('login').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('token', document.getElementById('token').value.trim());
  show();
});
addEventListener('popstate', show);
show();
