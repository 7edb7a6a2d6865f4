// Network tab: collectives with arrival, wait and transfer of each rank, stragglers and their causes.

function networkTab(report, go) {
  const { network } = report;
  if (network.collective_count === 0) return [note('No collectives in the windows.')];
  const several = network.collectives.some((one) => one.ranks.length > 1);
  const late = new Map(network.arrivals.map((one) => [one.index, one]));
  const apart = network.is_simultaneous ? null : el('p', { class: 'warning', text: 'The ranks\' windows do not overlap in time: they come from different jobs or clocks. Waiting between ranks cannot be computed.' });
  return [apart, several ? heading('Waiting and transfer of each rank') : null, several ? perRank(network) : note('Only one rank was recorded. Arrival, wait and transfer need the traces of several ranks.'),
    several ? heading('Stragglers') : null, several ? stragglers(network) : null,
    heading('Collectives'),
    note(`${network.collectives.length < network.collective_count ? `The ${count(network.collectives.length)} longest of ${count(network.collective_count)}. ` : ''}A rank's kernel begins when the rank arrives. Its time until the last rank arrives is waiting. Open a row to see all ranks.`),
    table([
      { title: 'last arrival', kind: 'number', get: (row) => Math.max(...row.ranks.map((one) => one[1])), cell: (row) => link(moment(Math.max(...row.ranks.map((one) => one[1])), 1e7), () => go.span(...span(row)), 'show it on the timeline') },
      { title: 'operation', kind: 'words', get: (row) => row.operation }, { title: 'kernel', kind: 'name', get: (row) => row.name },
      { title: 'group', kind: 'text', get: (row) => row.group || '–' }, { title: 'ranks', kind: 'text', get: (row) => (row.ranks.length === row.group_size ? String(row.group_size) : `${row.ranks.length} of ${row.group_size}`) },
      { title: 'bytes', kind: 'bytes', get: (row) => row.bytes }, { title: 'transfer', kind: 'ns', get: (row) => row.transfer_ns, bar: () => colour('transfer') },
      { title: 'waiting, all ranks', kind: 'ns', get: (row) => row.wait_ns, bar: () => colour('wait') }, { title: 'last rank', kind: 'number', get: (row) => row.last_rank },
      { title: 'late by', kind: 'ns', get: (row) => row.late_by_ns, tip: 'time after the second-last arrival' }, { title: 'bus GB/s', kind: 'number', get: (row) => row.bus_bandwidth_gb_per_s }],
    network.collectives, { top: 25, search: 'search collectives', detail: (row) => collectiveDetail(row, late.get(row.index), go) }),
    network.unmatched.length ? heading('Unmatched kernels') : null,
    network.unmatched.length ? table([
      { title: 'kernel', kind: 'name', get: (row) => row.name }, { title: 'rank', kind: 'number', get: (row) => row.rank },
      { title: 'group', kind: 'text', get: (row) => row.group }, { title: 'reason', kind: 'words', get: (row) => row.reason }, { title: 'count', kind: 'count', get: (row) => row.count }], network.unmatched) : null,
    several ? heading('Clocks') : null, several ? table([
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'collectives', kind: 'count', get: (row) => row.collectives },
      { title: 'clock ahead by', kind: 'ns', get: (row) => row.ahead_ns }, { title: 'spread', kind: 'ns', get: (row) => row.spread_ns },
      { title: 'corrected by', kind: 'ns', get: (row) => row.correction_ns }], network.clocks, { top: 64 }) : null];
}

function span(row) {
  return [Math.min(...row.ranks.map((one) => one[1])), Math.max(...row.ranks.map(([, at, , length]) => at + length))];
}

function perRank(network) {
  const ranks = new Map();
  for (const one of network.collectives) {
    for (const [rank, , wait, length] of one.ranks) {
      const total = ranks.get(rank) ?? [0, 0];
      const waited = Math.min(wait, length);
      ranks.set(rank, [total[0] + waited, total[1] + length - waited]);
    }
  }
  const bars = [...ranks].sort((a, b) => a[0] - b[0]).map(([rank, [wait, transfer]]) => ({ label: `rank ${rank}`, parts: [{ key: 'wait', value: wait }, { key: 'transfer', value: transfer }], value: nanos(wait + transfer) }));
  return el('div', {}, stackedBars(bars), legend(['wait', 'transfer']));
}

function stragglers(network) {
  return table([
    { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'times last', kind: 'count', get: (row) => row.times_last },
    { title: 'collectives', kind: 'count', get: (row) => row.collectives }, { title: 'share', kind: 'percent', get: (row) => row.last_pct },
    { title: 'caused delay', kind: 'ns', get: (row) => row.caused_delay_ns, tip: 'sum of the times after the second-last arrival', bar: () => colour('communication') },
    { title: 'own wait', kind: 'ns', get: (row) => row.wait_ns, bar: () => colour('wait') }, { title: 'main cause', kind: 'words', get: (row) => row.cause ?? '–' },
    { title: 'excess time', kind: 'ns', get: (row) => (row.cause ? row.cause_ns : null) }, { title: 'main contributor', kind: 'name', get: (row) => row.cause_name }], network.stragglers, { top: 64 });
}

function collectiveDetail(row, late, go) {
  const rows = row.ranks.map(([rank, at, wait, length]) => {
    const waited = Math.min(wait, length);
    return { label: `rank ${rank}`, spans: [{ key: 'wait', at, length: waited, title: `rank ${rank} waits ${nanos(waited)}` },
      { key: 'transfer', at: at + waited, length: length - waited, title: `rank ${rank}: ${nanos(length - waited)} after the last arrival` }] };
  });
  const why = late && late.cause ? `Rank ${late.last_rank} was late by ${nanos(late.late_by_ns)}: since all last met it spent ${nanos(late.cause_ns)} more than the others on ${words(late.cause)}${late.cause_name ? `, mostly ${late.cause_name}` : ''}.` : '';
  return [el('p', { class: 'full-name', text: plain(row.name) }), why ? el('p', { text: why }) : null, strips(rows, span(row)), legend(['wait', 'transfer']),
    el('div', { class: 'tools' }, press('show on the timeline', () => go.span(...span(row)))),
    table([
      { title: 'rank', kind: 'number', get: (one) => one[0] }, { title: 'arrival', kind: 'number', get: (one) => one[1], cell: (one) => exactly(one[1]) },
      { title: 'wait', kind: 'ns', get: (one) => one[2] }, { title: 'kernel', kind: 'ns', get: (one) => one[3] }], row.ranks, { top: 64 })];
}
