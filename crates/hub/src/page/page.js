'use strict';
// Shows where the GPU time of a fleet goes. The address holds what is shown, and sessionStorage the
// token. `session.js` asks the hub, and `charts.js` draws.

const DIMENSIONS = ['workflow', 'user', 'run', 'pool', 'model', 'host'];
// What the time of CPUs is listed by, because it belongs to hosts instead of runs.
const OF_HOSTS = ['pool', 'host'];
const CONTROLS = [
  ['view', 'View', [['band', 'where it goes'], ['time', 'over time'], ['change', 'against a week before'], ['opportunity', 'what to mend first'], ['runs', 'runs'], ['hosts', 'hosts']], 'band'],
  ['tree', 'Resources', [['gpu', 'GPUs'], ['cpu', 'CPUs']], 'gpu'],
  ['since', 'Time', [['1h', 'last hour'], ['24h', 'last day'], ['yesterday', 'yesterday (UTC)'], ['7d', 'last 7 days'], ['30d', 'last 30 days'], ['90d', 'last 90 days']], '24h'],
  ['weight', 'Weight', [['gpu', 'GPUs'], ['sm', 'SMs'], ['flops', 'FLOP/s'], ['price', 'price']], 'gpu'],
  ['bound', 'Not observed', [['lower', 'apart'], ['upper', 'counts as active']], 'lower'],
  ['by', 'List by', DIMENSIONS.map((name) => [name, name]), 'workflow'],
];
// Divisor and unit of sums, and of their rates over time, by weight of GPUs or for cores.
const UNITS = { gpu: [3600, 'GPU h'], sm: [3600, 'SM h'], flops: [1e18, 'EFLOP'], price: [1, 'price'], core: [3600, 'core h'] };
const RATES = { gpu: [1, 'GPUs'], sm: [1, 'SMs'], flops: [1e15, 'PFLOP/s'], price: [1 / 3600, 'price per hour'], core: [1, 'cores'] };
const STEPS = { '1h': 'minute', '24h': 'hour', yesterday: 'hour', '7d': 'hour', '30d': 'day', '90d': 'day' };
const DAY = 86400;
const LENGTHS = { '1h': 3600, '24h': DAY, '7d': 7 * DAY, '30d': 30 * DAY, '90d': 90 * DAY };
const WEEK = 7 * DAY;
// Number of lines of a chart, and of rows of a table of runs.
const [LINES, RUNS] = [6, 500];
// Relative difference of efficiencies that is not called a change.
const NOISE = 0.02;
// Rows of a table that are shown.
const ROWS = 1000;

const view = document.getElementById('view');
let shown = 0;

// Reads what is shown from the address.
function readState() {
  const query = new URLSearchParams(location.search);
  const state = { part: Number(query.get('part') ?? -1), sort: query.get('sort') ?? '', selection: [] };
  for (const [key, , options, usual] of CONTROLS) {
    const value = query.get(key) ?? usual;
    state[key] = options.some(([option]) => option === value) ? value : usual;
  }
  for (const [key, value] of query) {
    if (key.startsWith('is.') && DIMENSIONS.includes(key.slice(3))) state.selection.push([key.slice(3), value]);
  }
  const known = Object.fromEntries(CONTROLS.map(([key, , options]) => [key, options.map(([value]) => value)]));
  state.wrong = checkAddress(query, { ...known, part: ['-1', ...LOSSES.flat().map(String), String(ACTIVE)], sort: null });
  for (const [key] of query) {
    if (key.startsWith('is.') && !DIMENSIONS.includes(key.slice(3))) state.wrong.push(`The address selects by “${key.slice(3)}”. Known: ${DIMENSIONS.join(', ')}.`);
  }
  // Only the sums are there for CPUs, and only for hosts.
  if (!['band', 'time'].includes(state.view)) state.tree = 'gpu';
  if (state.tree === 'cpu') {
    state.weight = 'core';
    state.selection = state.selection.filter(([dimension]) => OF_HOSTS.includes(dimension));
    if (!OF_HOSTS.includes(state.by)) state.by = 'pool';
  }
  const now = Math.floor(Date.now() / 1000);
  const until = state.since === 'yesterday' ? now - (now % DAY) : now;
  state.range = [until - (LENGTHS[state.since] ?? DAY), until];
  return state;
}

function go(change) {
  const state = { ...readState(), ...change };
  if (change.view) state.sort = '';
  const query = new URLSearchParams(CONTROLS.map(([key]) => [key, state[key]]));
  if (state.part >= 0) query.set('part', state.part);
  if (state.sort) query.set('sort', state.sort);
  state.selection.forEach(([dimension, name]) => query.append(`is.${dimension}`, name));
  history.pushState(null, '', `?${query}`);
  show();
}

function ask(state, what, options, weeksBefore = 0) {
  const [since, until] = state.range.map((time) => time - weeksBefore * WEEK);
  const resources = state.tree === 'cpu' ? { tree: 'cpu' } : { weight: state.weight };
  const query = new URLSearchParams({ since, until, ...resources });
  new URLSearchParams(options).forEach((value, key) => query.append(key, value));
  state.selection.forEach(([dimension, name]) => query.append(dimension, name));
  return fetchAnswer(what, query);
}

// Moves the parts that were not observed to the active one, if they count as active.
function bounded(state, parts) {
  const bound = [...parts];
  if (state.bound === 'upper') {
    bound[ACTIVE] += bound[3] + bound[5];
    bound[3] = bound[5] = 0;
  }
  return bound;
}

// Returns the parts of a group in the unit of the page.
function partsOf(state, group) { return bounded(state, group.parts.map((part) => part / UNITS[state.weight][0])); }

function held(parts) { return sum(parts.slice(3)); }

function lost(parts) { return parts[4] + parts[6]; }

// Returns the active share of the allocated time, at least and at most.
function activeShares(parts) { return [parts[ACTIVE], parts[ACTIVE] + parts[3] + parts[5]].map((active) => active / held(parts)); }

function busyShares(parts) {
  const busy = parts[5] + parts[6] + parts[ACTIVE];
  return [busy, busy + parts[3]].map((value) => value / held(parts));
}

// Returns the active share of the time in which it was observed, or of all if the rest counts as active.
function efficiency(state, group) {
  const parts = partsOf(state, group);
  const { sm_active_s: active, sm_observed_s: observed } = group.sums;
  const share = state.bound === 'upper' ? parts[ACTIVE] / held(parts) : active / observed;
  return Number.isFinite(share) ? Math.min(1, share) : null;
}

function showControls(state) {
  const isThere = (key) => (key === 'by' ? state.view === 'band' : key === 'tree' ? ['band', 'time'].includes(state.view) : key !== 'weight' || state.tree === 'gpu');
  const controls = CONTROLS.filter(([key]) => isThere(key)).flatMap(([key, label, all]) => {
    const options = key === 'by' && state.tree === 'cpu' ? all.filter(([name]) => OF_HOSTS.includes(name)) : all;
    const select = el('select', { id: `control-${key}` }, ...options.map(([value, text]) => el('option', { value, text })));
    select.value = state[key];
    select.addEventListener('change', () => go({ [key]: select.value }));
    return [el('label', { for: select.id, text: label }), select];
  });
  document.getElementById('controls').replaceChildren(...controls);
}

// A button that selects a member, and shows where its time goes.
function nameButton(state, dimension, name) {
  if (name === '') return el('span', { text: '(not allocated)' });
  return el('button', { class: 'name', type: 'button', text: name, click: () => choose(state, dimension, name) });
}

// A link to the screen of a run or a host.
function doctorLink(state, dimension, name) {
  // A run is shown from its begin to its end.
  const time = dimension === 'host' ? { since: state.range[0], until: state.range[1] } : {};
  return el('a', { href: `/doctor?${new URLSearchParams({ [dimension]: name, ...time })}`, text: 'look' });
}

// A link to the logs of a run in the system that keeps them. The hub has encoded the names in it.
function logLink(run) { return el('a', { href: run.log_url, rel: 'noreferrer', target: '_blank', text: 'log' }); }

// Selects a member of a dimension, and lists it by the next one.
function choose(state, dimension, name) {
  const selection = [...state.selection.filter(([other]) => other !== dimension), [dimension, name]];
  const levels = state.tree === 'cpu' ? ['pool'] : ['workflow', 'user', 'run'];
  const next = levels.find((one) => !selection.some(([other]) => other === one));
  go({ view: 'band', selection, by: next ?? 'host' });
}

function list(state, answer) {
  const unit = UNITS[state.weight][1];
  const part = state.part >= 0 && state.part < ACTIVE ? state.part : -1;
  const rows = answer.groups.map((group) => {
    const parts = partsOf(state, group);
    return { parts, name: group[state.by], held: held(parts), lost: part < 0 ? lost(parts) : parts[part], unknown: parts[3] + parts[5] };
  });
  rows.sort((a, b) => (part < 0 ? b.held - a.held : b.lost - a.lost));
  const all = sum(rows.map((row) => row.lost));
  const columns = [
    [state.by, (row) => row.name, (row) => nameButton(state, state.by, row.name)],
    [unit, (row) => sum(row.parts), (row) => amount(sum(row.parts))],
    [`allocated ${unit}`, (row) => row.held, (row) => amount(row.held)],
    [answer.layer_names[4], (row) => busyShares(row.parts)[0], (row) => range(busyShares(row.parts))],
    [answer.layer_names[5], (row) => activeShares(row.parts)[0], (row) => range(activeShares(row.parts))],
    [`not observed ${unit}`, (row) => row.unknown, (row) => amount(row.unknown)],
    [`${part < 0 ? 'lost' : answer.part_names[part]} ${unit}`, (row) => row.lost, (row) => amount(row.lost)],
    ['share of it', (row) => row.lost / all, (row) => percent(row.lost / all)],
  ];
  const title = part < 0 ? `By ${state.by}` : `${answer.part_names[part]}, by ${state.by}`;
  return [el('h2', { text: title }), sorted(state, columns, rows), leftOut(state, answer)];
}

function sorted(state, columns, rows) {
  return table({ columns, rows, sort: state.sort, sortBy: (sort) => go({ sort }) });
}

function leftOut(state, answer) {
  if (!(answer.groups_left_out > 0)) return null;
  const rest = sum(answer.others.map((group) => held(partsOf(state, group))));
  return el('p', { class: 'note', text: `${unlisted(answer.groups_left_out, 'smaller group')} ${answer.groups_left_out === 1 ? 'It has' : 'They have'} ${amount(rest)} ${UNITS[state.weight][1]} of the allocated time.` });
}

// Names what is selected, or returns an empty text.
function selected(state) { return state.selection.map(([dimension, name]) => `${dimension} ${name}`).join(', '); }

// Says which key of the hub's configuration sets a missing weight.
function weightAdvice(state) {
  const [what, key] = { sm: ['number of SMs', 'sms'], flops: ['FLOP/s', 'flops'], price: ['price', 'price_per_hour'] }[state.weight];
  return `The ${what} of a model is set by “${key}” of [[model]] in the configuration of the hub.`;
}

function notes(state, answer) {
  const resources = state.tree === 'cpu' ? 'cores' : 'GPUs';
  const texts = [state.selection.length > 0 ? `100 % is the time of the selected ${resources}: ${selected(state)}.` : `Deployed are ${resources} of hosts that report rows. Hosts that report nothing are unknown.`];
  if (answer.note) texts.push(answer.note);
  const names = [...answer.unknown_weight].join(', ');
  if (names) texts.push(`The weight of these models is unknown, so their time is left out: ${names}. ${weightAdvice(state)}`);
  if (answer.hours_missing) texts.push(`${counted(answer.hours_missing, 'whole hour')} ${answer.hours_missing === 1 ? 'has' : 'have'} no rows: no host reported, or the rows were deleted.`);
  if (answer.total.parts[3] + answer.total.parts[5] > 0) {
    texts.push(state.bound === 'upper' ? 'Time that was not observed counts as active.' : 'Time that was not observed may have been idle or active, so efficiencies are ranges.');
  }
  return texts.map((text) => el('p', { class: 'note', text }));
}

// Returns the percentages of the parts, rounded by the hub, so that they add up to 100.0.
function sharesOf(state, group) { return bounded(state, group.percent); }

function wholeShare(state, group) {
  const shares = sharesOf(state, group);
  return range([shares[ACTIVE], shares[ACTIVE] + shares[3] + shares[5]].map((share) => share / 100));
}

// Returns the top line: the occupancy of SMs over elapsed cycles where it is measured. Elsewhere, the share
// of time with active SMs stands in for it, which the page says.
function topLine(state, total) {
  if (state.tree !== 'gpu' || !(total.sums.allocated_s > 0)) return [];
  const standIn = 'the time with active SMs stands in for it';
  if (total.occupancy == null) return [el('p', { class: 'note', text: `SM occupancy over elapsed cycles was not measured in this time, so ${standIn}. It needs the counters of NVML (Hopper and later) or of dcgm-exporter.` })];
  const measured = total.sums.occupancy_observed_s / total.sums.allocated_s;
  const rest = measured < 0.9995 ? ` In the rest, ${standIn}.` : '';
  return [el('p', { class: 'headline', text: `${percent(total.occupancy)} SM occupancy over elapsed cycles of allocated GPUs` }),
    el('p', { class: 'note', text: `Measured in ${percent(measured)} of the allocated time.${rest}` })];
}

async function showBand(state) {
  const hostsOf = state.tree === 'gpu' ? state : { ...state, tree: 'gpu', weight: 'gpu' };
  const [answer, before, hosts] = await Promise.all([
    ask(state, 'sums', { by: state.by, limit: ROWS }), ask(state, 'sums', {}, 1), ask(hostsOf, 'hosts', {})]);
  const { total } = answer;
  if (!(total.sums.deployed_s > 0)) {
    const isUnweighted = answer.unknown_weight.length > 0;
    const none = isUnweighted ? `No model has a known ${state.weight === 'price' ? 'price' : 'weight'}.` : `No rows of ${state.tree === 'cpu' ? 'CPUs' : 'GPUs'} in this time.`;
    return [el('p', { class: 'headline', text: none }), ...notes(state, answer)];
  }
  const innermost = state.tree === 'cpu' ? 'had cores in user code' : 'had active SMs';
  const unit = UNITS[state.weight][1];
  const earlier = before.total.percent ? `A week before: ${wholeShare(state, before.total)}.` : '';
  const sick = hosts.hosts.filter((host) => host.issues.length > 0).length;
  const band = sankey({
    layers: state.selection.length > 0 ? ['selected', ...answer.layer_names.slice(1)] : answer.layer_names,
    parts: partsOf(state, total), shares: sharesOf(state, total), names: answer.part_names, unit, chosen: state.part,
    choose: (part) => go({ part: state.part === part ? -1 : part }),
  });
  const dots = answer.groups.map((group) => ({ name: group[state.by], held: held(partsOf(state, group)), share: efficiency(state, group), click: () => choose(state, state.by, group[state.by]) }));
  return [
    ...topLine(state, total),
    el('p', { class: 'headline', text: `${wholeShare(state, total)} of the ${state.selection.length > 0 ? `time of ${selected(state)}` : 'deployed time'} ${innermost}` }),
    el('p', { class: 'note' }, earlier, ' ', el('button', { class: 'name', type: 'button', text: `${sick} of ${hosts.hosts.length} hosts have problems.`, click: () => go({ view: 'hosts' }) })),
    ...weekNotes(state, answer, before).map((text) => el('p', { class: 'note', text })),
    ...notes(state, answer), band, ...list(state, answer),
    el('div', { class: 'charts' }, scatter(`Each ${state.by}: allocated ${unit} and ${answer.layer_names[5]}`, dots.filter((dot) => dot.held > 0 && dot.share != null), unit))];
}

async function showTime(state) {
  const step = { step: STEPS[state.since] };
  const groupings = state.tree === 'cpu' ? ['', 'pool'] : ['', 'workflow', 'user'];
  const answers = await Promise.all(groupings.map((by) => ask(state, 'sums', by ? { ...step, by, limit: LINES } : step)));
  const [divisor, rate] = RATES[state.weight];
  const { total, layer_names: layers } = answers[0];
  const hasOccupancy = state.tree === 'gpu' && total.occupancy != null;
  const [measure, metric] = hasOccupancy ? [(group) => group.occupancy, 'SM occupancy over elapsed cycles'] : [(group) => efficiency(state, group), layers[5]];
  return [...topLine(state, total), ...notes(state, answers[0]), ...groupings.map((by, at) => {
    const answer = answers[at];
    const starts = [];
    const first = answer.since_unix_s - (answer.since_unix_s % answer.step_s);
    for (let start = first; start < answer.until_unix_s; start += answer.step_s) starts.push(start);
    const seconds = (start) => Math.min(answer.until_unix_s, start + answer.step_s) - Math.max(answer.since_unix_s, start);
    const names = [...new Set(answer.groups.map((group) => group[by] ?? ''))].filter((name) => by === '' || name !== '');
    const line = (name, groups, click) => {
      const steps = new Map(groups.map((group) => [group.start_unix_s, group]));
      const points = (value, missing) => starts.map((start) => [start, steps.has(start) ? value(steps.get(start)) : missing]);
      return {
        rate: { name, click, points: points((group) => group.sums.allocated_s / seconds(group.start_unix_s) / divisor, 0) },
        share: { name, click, points: points(measure, null) },
      };
    };
    const lines = names.map((name) => line(name, answer.groups.filter((group) => (group[by] ?? '') === name), by ? () => choose(state, by, name) : null));
    if (answer.others.some((group) => group.sums.allocated_s > 0)) lines.push(line(counted(answer.groups_left_out, 'other'), answer.others, null));
    const title = by ? `, by ${by}` : '';
    const time = [starts[0], starts.at(-1)];
    return el('div', { class: 'charts' },
      chart(`Allocated ${rate}${title}`, lines.map((one) => one.rate), amount, time),
      chart(`${metric}${title}`, lines.map((one) => one.share), percent, time));
  })];
}

// Says why a week before cannot be compared, or only with care.
function weekNotes(state, now, before) {
  const [deployed, earlier] = [now, before].map((answer) => answer.total.sums.deployed_s);
  if (!(earlier > 0)) return ['There are no rows of a week before, so nothing is compared.'];
  const texts = [];
  if (earlier < 0.9 * deployed) texts.push(`A week before, hosts reported ${percent(earlier / deployed)} of the time of now, so compare shares instead of amounts.`);
  if (before.hours_missing > now.hours_missing) texts.push(`A week before, ${counted(before.hours_missing, 'whole hour')} ${before.hours_missing === 1 ? 'has' : 'have'} no rows, so a shorter time is compared.`);
  if (state.range[1] - WEEK > state.range[0]) texts.push('The time is longer than a week, so it overlaps with the time a week before.');
  return texts;
}

// Divides the drop of a user's efficiency into the part within workflows, at the use of now, and the
// part of another mix of workflows. `now` and `before` are the groups of the user by workflow.
function divideDrop(drop, use, now, before) {
  const observed = sum(now.map((group) => group.sums.sm_observed_s));
  const rate = ({ sums }) => sums.sm_active_s / sums.sm_observed_s;
  const earlier = new Map(before.map((group) => [group.workflow, group]));
  const within = use * sum(now.map((group) => {
    const old = earlier.get(group.workflow);
    if (!(old?.sums.sm_observed_s > 0) || !(group.sums.sm_observed_s > 0)) return 0;
    return (group.sums.sm_observed_s / observed) * (rate(old) - rate(group));
  }));
  return { within, mix: drop - within };
}

function askWeeks(state, options) { return Promise.all([0, 1].map((week) => ask(state, 'sums', options, week))); }

// Returns what each member of a dimension used and lost, now and a week before, and the answers that say so.
// The drop of a user is divided into the part within workflows and the part of another mix.
async function compareWeeks(state, by) {
  const mix = new URLSearchParams([['by', 'user'], ['by', 'workflow'], ['limit', ROWS * 10]]);
  const [answers, mixed] = await Promise.all([askWeeks(state, { by, limit: ROWS }), by === 'user' ? askWeeks(state, mix) : []]);
  const [named, earlier] = answers.map((answer) => new Map(answer.groups.filter((group) => group[by] !== '').map((group) => [group[by], group])));
  const rows = [...new Set([...named.keys(), ...earlier.keys()])].map((name) => {
    const [group, old] = [named.get(name), earlier.get(name)];
    const value = (measure, one) => (one ? measure(partsOf(state, one)) : 0);
    const [share, oldShare] = [group, old].map((one) => (one ? efficiency(state, one) : null));
    const [use, oldUse] = [value(held, group), value(held, old)];
    const drop = share == null || oldShare == null ? null : (oldShare - share) * use;
    const byWorkflow = mixed.map((answer) => answer.groups.filter((one) => one.user === name));
    const parts = by === 'user' && drop != null ? divideDrop(drop, use, ...byWorkflow) : { within: drop, mix: drop == null ? null : 0 };
    return { by, name, use, oldUse, share, oldShare, drop, ...parts, lost: value(lost, group), oldLost: value(lost, old), isWorse: use > oldUse && parts.within > 0 && share < oldShare * (1 - NOISE) };
  });
  return { answers, rows: rows.sort((a, b) => (b.within ?? 0) - (a.within ?? 0)) };
}

async function showChange(state) {
  const groupings = ['workflow', 'user'];
  const changes = await Promise.all(groupings.map((by) => compareWeeks(state, by)));
  const unit = UNITS[state.weight][1];
  const [now, before] = changes[0].answers;
  const texts = weekNotes(state, now, before);
  return [...texts.map((text) => el('p', { class: 'note', text })), ...groupings.flatMap((by, at) => {
    const { rows } = changes[at];
    const drops = (row, key) => (row[key] == null ? '–' : amount(row[key]));
    const split = by === 'user' ? [['within workflows', (row) => row.within, (row) => drops(row, 'within')], ['by another mix', (row) => row.mix, (row) => drops(row, 'mix')]] : [];
    const columns = [
      [by, (row) => row.name, (row) => nameButton(state, by, row.name)],
      [`allocated ${unit}`, (row) => row.use, (row) => amount(row.use)],
      ['a week before', (row) => row.oldUse, (row) => amount(row.oldUse)],
      ['SM active', (row) => row.share, (row) => percent(row.share)],
      ['before', (row) => row.oldShare, (row) => percent(row.oldShare)],
      [`${unit} by the drop`, (row) => row.drop, (row) => drops(row, 'drop')],
      ...split,
      [`lost ${unit}`, (row) => row.lost, (row) => amount(row.lost)],
      ['lost before', (row) => row.oldLost, (row) => amount(row.oldLost)],
      ['trend', (row) => (row.isWorse ? 'use up, efficiency down' : '')],
    ];
    const note = by === 'user' ? el('p', { class: 'note', text: 'A user’s efficiency also changes with the mix of workflows. “Within workflows” compares each workflow with itself a week before, at the use of now.' }) : null;
    return [el('h2', { text: `Each ${by}, by what its drop of efficiency costs` }), note, sorted(state, columns, rows)];
  })];
}

// Ranks workflows by what they would gain, and lists use that grows while its efficiency falls, and hangs.
async function showOpportunity(state) {
  const groupings = ['workflow', 'user'];
  const [answer, ...changes] = await Promise.all([ask(state, 'opportunities', { limit: ROWS }), ...groupings.map((by) => compareWeeks(state, by))]);
  const [divisor, unit] = UNITS[state.weight];
  const all = answer.reachable;
  let before = 0;
  const ranked = answer.workflows.map((row) => ({ ...row, upTo: (before += row.reachable) / Math.max(all, 1e-9) }));
  const gains = [
    ['workflow', (row) => row.workflow, (row) => nameButton(state, 'workflow', row.workflow)],
    [`reachable ${unit}`, (row) => row.reachable, (row) => amount(row.reachable / divisor)],
    ['share up to here', (row) => row.upTo, (row) => percent(row.upTo)],
    [`lost ${unit}`, (row) => row.lost, (row) => amount(row.lost / divisor)],
    [`allocated ${unit}`, (row) => row.allocated, (row) => amount(row.allocated / divisor)],
    ['SM active', (row) => row.efficiency, (row) => percent(row.efficiency)],
    ['target', (row) => row.target, (row) => percent(row.target)],
    ['target from', (row) => (row.target_from === 'workflow' ? `its own ${row.runs} runs` : 'runs of all workflows (a guess)')],
  ];
  const falling = changes.flatMap(({ rows }) => rows.filter((row) => row.isWorse)).sort((a, b) => b.within - a.within);
  const falls = [
    ['name', (row) => row.name, (row) => nameButton(state, row.by, row.name)],
    ['kind', (row) => row.by],
    [`allocated ${unit}`, (row) => row.use, (row) => amount(row.use)],
    ['a week before', (row) => row.oldUse, (row) => amount(row.oldUse)],
    ['SM active', (row) => row.share, (row) => percent(row.share)],
    ['before', (row) => row.oldShare, (row) => percent(row.oldShare)],
    [`${unit} by the drop`, (row) => row.within, (row) => amount(row.within)],
  ];
  const hung = [
    ['run', (row) => row.run, (row) => nameButton(state, 'run', row.run)],
    ['user', (row) => row.user, (row) => nameButton(state, 'user', row.user)],
    ['host', (row) => row.host, (row) => nameButton(state, 'host', row.host)],
    ['process', (row) => row.pid],
    ['rank', (row) => row.rank ?? ''],
    ['last step (UTC)', (row) => row.start_unix_s, (row) => moment(row.start_unix_s)],
    ['hung minutes', (row) => row.length_s, (row) => amount(row.length_s / 60)],
    ['now', (row) => (row.is_over ? 'over' : 'hangs')],
    [`${unit} since then`, (row) => row.allocated, (row) => amount(row.allocated / divisor)],
  ];
  const part = (title, note, columns, rows) => [el('h2', { text: title }), el('p', { class: 'note', text: note }),
    rows.length > 0 ? sorted(state, columns, rows) : el('p', { class: 'note', text: 'There are none.' })];
  return [
    el('p', { class: 'headline', text: `${amount(all / divisor)} ${unit} would be gained if each run were as efficient as the better ones of its workflow` }),
    ...part('Workflows by what they would gain', 'The target of a workflow is the 75th percentile of the efficiency of its runs, weighted by their observed time. With fewer than four runs it is that of all runs.', gains, ranked),
    answer.workflows_left_out > 0 ? el('p', { class: 'note', text: unlisted(answer.workflows_left_out, 'smaller workflow') }) : null,
    ...part('Use up while efficiency falls', 'Workflows and users that used more than a week before, at a lower efficiency.', falls, falling),
    ...part('Hung jobs', 'Processes whose GPU is busy while no step completes, with what their run held since the last step.', hung, answer.hangs)];
}

async function showRuns(state) {
  const answer = await ask(state, 'runs', { limit: RUNS });
  const [divisor, unit] = UNITS[state.weight];
  const rows = answer.runs.map((run) => ({ ...run, all: partsOf(state, run) }));
  const began = (run) => (run.attempts[0] ?? run).started_unix_s;
  const attempt = (one) => `${one.state} (${amount(one.allocated / divisor)} ${unit})`;
  const end = (run) => [...run.attempts.map(attempt), lastEnd(run)].join(', then ');
  const lastEnd = (run) => {
    if (run.ended_unix_s == null) return run.state || '–';
    const code = run.exit_code ? `, exit code ${run.exit_code}` : '';
    return `${run.state || 'ended'}${code}${run.exit_signal ? `, signal ${run.exit_signal}` : ''}`;
  };
  const columns = [
    ['run', (run) => run.run, (run) => nameButton(state, 'run', run.run)],
    ['workflow', (run) => run.workflow, (run) => nameButton(state, 'workflow', run.workflow)],
    ['user', (run) => run.user, (run) => nameButton(state, 'user', run.user)],
    ['began', began, (run) => moment(began(run))],
    ['ended', (run) => run.ended_unix_s, (run) => moment(run.ended_unix_s)],
    ['end', end],
    ['PerfDoctor', () => '', (run) => doctorLink(state, 'run', run.run)],
    ...(rows.some((run) => run.log_url) ? [['log', () => '', (run) => logLink(run)]] : []),
    ['repeats', (run) => run.repeats ?? '', (run) => (run.repeats ? nameButton(state, 'run', run.repeats) : '')],
    [`allocated ${unit}`, (run) => held(run.all), (run) => amount(held(run.all))],
    [`lost ${unit}`, (run) => lost(run.all), (run) => amount(lost(run.all))],
    ['SM active', (run) => activeShares(run.all)[0], (run) => range(activeShares(run.all))],
  ];
  if (rows.some((run) => run.steps_per_s != null)) columns.push(['steps/s without GPUs', (run) => run.steps_per_s, (run) => (run.steps_per_s == null ? '–' : amount(run.steps_per_s))]);
  const text = `Failed runs held ${amount(answer.failed / divisor)} ${unit}, and runs that repeat a failed one ${amount(answer.repeated / divisor)} ${unit}.`;
  return [el('p', { class: 'headline', text }), sorted(state, columns, rows),
    answer.runs_left_out > 0 ? el('p', { class: 'note', text: unlisted(answer.runs_left_out, 'smaller run') }) : null];
}

async function showHosts(state) {
  const { hosts } = await ask(state, 'hosts', {});
  const sick = hosts.filter((host) => host.issues.length > 0);
  const columns = [
    ['host', (row) => row.host, (row) => nameButton(state, 'host', row.host)],
    ['PerfDoctor', () => '', (row) => doctorLink(state, 'host', row.host)],
    ['problems', (row) => row.issues.map((issue) => issue.text).join('; '), (row) => el('span', null, ...row.issues.map((issue) => el('div', { text: issue.text })))],
    ['lost GPU h', (row) => row.lost_gpu_hours, (row) => amount(row.lost_gpu_hours)],
    ['last row (UTC)', (row) => row.last_row_unix_s, (row) => moment(row.last_row_unix_s)],
    ['scheduler', (row) => row.node?.state.join('+') ?? ''],
    ['agent', (row) => row.versions.agent],
    ['driver', (row) => row.versions.driver],
    ['kernel', (row) => row.versions.kernel],
  ];
  return [el('p', { class: 'headline', text: `${sick.length} of ${hosts.length} hosts have problems` }), el('p', { class: 'note', text: 'Hosts with problems come first, by the GPU hours that were lost on them at most: not schedulable, silent, throttled, or allocated without active SMs.' }),
    sorted(state, columns, hosts.slice(0, ROWS)),
    hosts.length > ROWS ? el('p', { class: 'note', text: unlisted(hosts.length - ROWS, 'further host') }) : null];
}

const VIEWS = { band: showBand, time: showTime, change: showChange, opportunity: showOpportunity, runs: showRuns, hosts: showHosts };

async function show() {
  const turn = ++shown;
  const state = readState();
  showControls(state);
  const loading = document.getElementById('loading');
  loading.hidden = false;
  view.setAttribute('aria-busy', 'true');
  let nodes = [];
  try {
    await checkCaller();
    nodes = await VIEWS[state.view](state);
    if (turn !== shown) return;
    showProblem(null);
  } catch (error) {
    if (turn !== shown) return;
    showProblem(error);
  }
  const chips = state.selection.map(([dimension, name], at) => el('button', {
    type: 'button', text: `${dimension}: ${name} ×`, 'aria-label': `Remove ${dimension} ${name}`,
    click: () => go({ selection: state.selection.filter((_, other) => other !== at) }),
  }));
  // A selected run or host has a screen of its own.
  const single = state.selection.filter(([dimension]) => dimension === 'run' || dimension === 'host');
  chips.push(...single.map(([dimension, name]) => el('span', null, doctorLink(state, dimension, name), ` at ${name}`)));
  view.replaceChildren(...warnings(state.wrong), ...(nodes.length > 0 ? [el('div', { class: 'chips' }, ...chips), ...nodes.filter((node) => node)] : []));
  loading.hidden = true;
  view.setAttribute('aria-busy', 'false');
  document.body.dataset.shown = turn;
}

startPage(show);
