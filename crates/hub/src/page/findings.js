'use strict';
// Shows the findings of all traces with the GPU hours that they cost, and the last orders. The
// address holds the time, and sessionStorage the token. Names are only ever inserted as text.

const view = document.getElementById('view');

// Columns by which the tables are sorted.
const sorts = {};

// A report is shown in a tab of its own. Only paths of this hub are followed.
function link(order, reports) {
  const path = reports.get(order);
  if (!path?.startsWith('/hub/v1/traces/')) return '';
  return el('a', { href: path, target: '_blank', rel: 'noopener', text: 'report' });
}

// A link to the screen of a run, with the tab of its traces.
function runLink(run) {
  if (run === '') return '';
  return el('a', { href: `/doctor?${new URLSearchParams({ run, tab: 'traces' })}`, text: run });
}

function hours(key) { return [(one) => one[key], (one) => amount(one[key])]; }

function sortedTable(name, columns, rows) {
  return table({ columns, rows, sort: sorts[name] ?? '', sortBy: (sort) => { sorts[name] = sort; show(); } });
}

function shownFindings(answer, reports) {
  const traces = counted(answer.traces, 'trace');
  return [
    el('p', { class: 'headline', text: `${amount(answer.lost_gpu_hours)} GPU h could be saved` }),
    el('p', { class: 'note', text: `${traces} ${answer.traces === 1 ? 'stands' : 'stand'} for ${amount(answer.traced_gpu_hours)} of ${amount(answer.gpu_hours)} allocated GPU h${answer.sampled_gpu_hours > 0 ? `, periodic samples for ${amount(answer.sampled_gpu_hours)} of these` : ''}. Findings of a run may save the same time, so they are not added up.` }),
    el('h2', { text: 'By workflow' }),
    sortedTable('workflows', [
      ['workflow', (one) => one.workflow], ['user', (one) => one.user], ['GPU h', ...hours('gpu_hours')],
      ['of these traced', ...hours('traced_gpu_hours')], ['by samples', ...hours('sampled_gpu_hours')], ['could be saved', ...hours('lost_gpu_hours')], ['traces', (one) => one.traces],
    ], answer.workflows),
    el('h2', { text: 'By finding and run' }),
    sortedTable('findings', [
      ['finding', (one) => `${one.rule} ${one.title}`], ['workflow', (one) => one.workflow], ['user', (one) => one.user],
      ['run', (one) => one.run || 'samples of all runs', (one) => runLink(one.run) || 'samples of all runs'], ['traces', (one) => one.traces], ['GPU h', ...hours('gpu_hours')],
      ['lost GPU h', ...hours('lost_gpu_hours')], ['report', () => '', (one) => link(one.order, reports)],
    ], answer.findings),
  ];
}

function shownOrders(orders, reports) {
  const hosts = (order) => order.progress
    .map((one) => `${one.host}: ${one.state}${one.reason ? ` (${one.reason})` : ''}`).join(', ');
  return [
    el('h2', { text: 'Orders' }),
    sortedTable('orders', [
      ['time (UTC)', (order) => order.created_unix_s, (order) => moment(order.created_unix_s)], ['by', (order) => order.by],
      ['run', (order) => order.run, (order) => runLink(order.run)], ['workflow', (order) => order.workflow], ['hosts', hosts],
      ['why', (order) => order.why], ['report', () => '', (order) => link(order.id, reports)],
    ], orders),
  ];
}

async function show() {
  const address = new URLSearchParams(location.search);
  const wrong = checkAddress(address, { since: null, until: null });
  const query = new URLSearchParams({ since: address.get('since') ?? '7d' });
  if (address.has('until')) query.set('until', address.get('until'));
  try {
    await checkCaller();
    const [answer, { orders }] = await Promise.all([fetchAnswer('findings', query), fetchAnswer('orders', query)]);
    const reports = new Map(orders.map((order) => [order.id, order.report]));
    view.replaceChildren(...warnings(wrong), ...shownFindings(answer, reports), ...shownOrders(orders, reports));
    showProblem(null);
    document.body.dataset.shown = 'yes';
  } catch (error) {
    view.replaceChildren(...warnings(wrong));
    showProblem(error);
  }
}

startPage(show);
