// CPU tab: operators by self time and total time, annotations, calls that launch work.

function cpuTab(report, go) {
  const { host } = report;
  const find = (row) => link(row.name, () => go.find(row.name), row.name);
  return [heading('Operators'),
    note(`Over all ranks. Self time excludes called operators.${host.left_out_names ? ` ${count(host.left_out_names)} further names are not listed.` : ''}`),
    table([
      { title: 'name', kind: 'name', get: (row) => row.name, cell: find }, { title: 'count', kind: 'count', get: (row) => row.count },
      { title: 'self host time', kind: 'ns', get: (row) => row.host_self_ns, bar: () => colour('operator') }, { title: 'host time', kind: 'ns', get: (row) => row.host_ns },
      { title: 'self device time', kind: 'ns', get: (row) => row.device_self_ns, bar: () => colour('compute') }, { title: 'device time', kind: 'ns', get: (row) => row.device_ns },
      { title: 'kernels', kind: 'count', get: (row) => row.kernel_count }], host.operators, { top: 25, sort: 2, search: 'search operators', detail: operatorDetail, empty: 'No operators were recorded.' }),
    heading('Launches'), table([
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'calls', kind: 'count', get: (row) => row.call_count },
      { title: 'launched work', kind: 'count', get: (row) => row.work_count }, { title: 'from graphs', kind: 'count', get: (row) => row.graph_work_count },
      { title: 'time in calls', kind: 'ns', get: (row) => row.call_ns, bar: () => colour('runtime') }, { title: 'on the device', kind: 'ns', get: (row) => row.device_ns },
      { title: 'launch delay', kind: 'ns', get: (row) => row.delay_ns, tip: 'from the end of calls to the start of their work' },
      { title: 'shorter than their call', kind: 'count', get: (row) => row.short_count }, { title: 'slow calls', kind: 'count', get: (row) => row.slow_call_count, tip: 'longer than 50 µs' },
      { title: 'late starts', kind: 'count', get: (row) => row.late_count, tip: 'work that starts at least 100 µs after its call' }], host.launches, { top: 64 }),
    heading('Calls that launch work'), table([
      { title: 'call', kind: 'name', get: (row) => row.name }, { title: 'rank', kind: 'number', get: (row) => row.rank },
      { title: 'quantity', kind: 'words', get: (row) => ({ call: 'call', device: 'launched work', delay: 'delay' }[row.quantity]) },
      { title: 'count', kind: 'count', get: (row) => row.count }, { title: 'time', kind: 'ns', get: (row) => row.total_ns, bar: () => colour('runtime') },
      { title: 'p5', kind: 'ns', get: (row) => row.p5_ns }, { title: 'p50', kind: 'ns', get: (row) => row.p50_ns }, { title: 'p95', kind: 'ns', get: (row) => row.p95_ns },
      { title: 'longest', kind: 'ns', get: (row) => row.max_ns }], host.calls, { top: 12, search: 'search calls', empty: 'No call launched recorded work.' }),
    heading('Annotations'), table([
      { title: 'name', kind: 'name', get: (row) => row.name, cell: find }, { title: 'rank', kind: 'number', get: (row) => row.rank },
      { title: 'count', kind: 'count', get: (row) => row.count }, { title: 'host time', kind: 'ns', get: (row) => row.host_ns, bar: () => colour('annotation') },
      { title: 'p50', kind: 'ns', get: (row) => row.p50_ns }, { title: 'p95', kind: 'ns', get: (row) => row.p95_ns },
      { title: 'device time', kind: 'ns', get: (row) => row.device_ns, tip: 'launched inside, on its own thread' }, { title: 'device time, any thread', kind: 'ns', get: (row) => row.device_any_thread_ns },
      { title: 'kernels', kind: 'count', get: (row) => row.kernel_count }], host.annotations, { top: 15, sort: 3, search: 'search annotations', empty: 'No annotations were recorded.' })];
}

function operatorDetail(row) {
  const rows = row.ranks.map((one) => ({ label: `rank ${one.rank}`, min: one.min_ns, p25: one.p25_ns, p50: one.p50_ns, p75: one.p75_ns, p95: one.p95_ns, max: one.max_ns }));
  return [el('p', { class: 'full-name', text: row.name }), el('h3', { text: 'Duration of a call on the host, per rank (box: quartiles, tick: 95 %)' }), el('div', { class: 'scroll' }, spreads(rows, 'operator')),
    table([
      { title: 'rank', kind: 'number', get: (one) => one.rank }, { title: 'count', kind: 'count', get: (one) => one.count },
      { title: 'self host time', kind: 'ns', get: (one) => one.host_self_ns }, { title: 'host time', kind: 'ns', get: (one) => one.host_ns },
      { title: 'self device time', kind: 'ns', get: (one) => one.device_self_ns }, { title: 'device time', kind: 'ns', get: (one) => one.device_ns },
      { title: 'p5', kind: 'ns', get: (one) => one.p5_ns }, { title: 'p50', kind: 'ns', get: (one) => one.p50_ns }, { title: 'p95', kind: 'ns', get: (one) => one.p95_ns }], row.ranks, { top: 64 })];
}
