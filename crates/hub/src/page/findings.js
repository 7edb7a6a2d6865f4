'use strict';
// Shows the findings of all traces with the GPU hours that they cost, and the last orders. The
// address holds the time, and sessionStorage the token. Names are only ever inserted as text.

const view = document.getElementById('view');

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'text') node.textContent = value;
    else if (value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// Texts are aligned to the left and wrapped, numbers to the right.
function table(heads, rows) {
  const cell = (value) => el('td', { class: Number.isFinite(Number(value)) ? null : 'words' },
    value instanceof Node ? value : String(value));
  return el('div', { class: 'scroll' }, el('table', {},
    el('thead', {}, el('tr', {}, ...heads.map((text, at) => {
      const isNumber = rows.length > 0 && Number.isFinite(Number(rows[0][at]));
      return el('th', { text, class: isNumber ? null : 'words' });
    }))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...row.map(cell))))));
}

const hours = (value) => (value >= 10 || value === 0 ? value.toFixed(0) : value.toPrecision(2));
const time = (second) => new Date(second * 1000).toISOString().slice(0, 16).replace('T', ' ');

// A report is shown in a tab of its own. Only paths of this hub are followed.
function link(order, reports) {
  const path = reports.get(order);
  if (!path?.startsWith('/hub/v1/traces/')) return '';
  return el('a', { href: path, target: '_blank', rel: 'noopener', text: 'report' });
}

function shownFindings(answer, reports) {
  const row = (one) => [`${one.rule} ${one.title}`, one.workflow, one.user, one.run, one.traces,
    hours(one.gpu_hours), hours(one.lost_gpu_hours), link(one.order, reports)];
  return [
    el('p', { class: 'headline', text: `${hours(answer.lost_gpu_hours)} GPU h could be saved` }),
    el('p', { class: 'note', text: `${answer.traces} ${answer.traces === 1 ? 'trace stands' : 'traces stand'} for ${hours(answer.traced_gpu_hours)} of ${hours(answer.gpu_hours)} allocated GPU h. Findings of a run may save the same time, so they are not added up.` }),
    el('h2', { text: 'By workflow' }),
    table(['workflow', 'user', 'GPU h', 'of these traced', 'could be saved', 'traces'],
      answer.workflows.map((one) => [one.workflow, one.user, hours(one.gpu_hours),
        hours(one.traced_gpu_hours), hours(one.lost_gpu_hours), one.traces])),
    el('h2', { text: 'By finding and run' }),
    table(['finding', 'workflow', 'user', 'run', 'traces', 'GPU h', 'lost GPU h', ''],
      answer.findings.map(row)),
  ];
}

function shownOrders(orders, reports) {
  const hosts = (order) => order.progress
    .map((one) => `${one.host}: ${one.state}${one.reason ? ` (${one.reason})` : ''}`).join(', ');
  return [
    el('h2', { text: 'Orders' }),
    table(['time (UTC)', 'by', 'run', 'workflow', 'hosts', 'why', ''],
      orders.map((order) => [time(order.created_unix_s), order.by, order.run, order.workflow,
        hosts(order), order.why, link(order.id, reports)])),
  ];
}

async function show() {
  const since = new URLSearchParams(location.search).get('since') ?? '7d';
  const query = new URLSearchParams({ since });
  try {
    await checkCaller();
    const [answer, { orders }] = await Promise.all([fetchAnswer('findings', query), fetchAnswer('orders', query)]);
    const reports = new Map(orders.map((order) => [order.id, order.report]));
    view.replaceChildren(...shownFindings(answer, reports), ...shownOrders(orders, reports));
    showProblem(null);
    document.body.dataset.shown = 'yes';
  } catch (error) {
    view.replaceChildren();
    showProblem(error);
  }
}

startPage(show);
