//! Lists the kernels that an execution trace implies. The kernels of each operator follow from its
//! name and its tensors alone, by the table `operators.tsv`, without a calibration or a device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use analyze::calls::{self, Direction};
use analyze::collectives::CollectiveOperation;
use kernel_model::{Kind, Work};
use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor};

use super::operator_table::{OperatorRow, OperatorTable, PassCost, Token};
use super::{order, storage};
use crate::calibration::launches::{ApiCall, LaunchedWork};
use crate::cost::{operation_name, parse_operation};
use crate::program::WorkKind;

/// Operation of a kernel, derived from the name and the tensors of its operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Work that a trained model prices. The number is the factor by which the work differs from
    /// the FLOPs of the model's kernel, such as for rectangular windows.
    Learned(Work, f64),
    /// A pooled lookup of embedding rows, with the mean number of ids of a bag.
    Lookup { ids: u64, bags: u64 },
    /// A collective, with the number of its ranks.
    Collective { operation: CollectiveOperation, ranks: u32 },
    /// Bytes that are moved from or to the host.
    HostCopy,
    /// Any other kernel, which is priced by the bytes that it moves.
    Moved,
}

/// A kernel that an operator launches.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedKernel {
    pub kernel: Kernel,
    /// Least time of the kernel and number of its passes over memory.
    pub pass: PassCost,
    /// Factor on the time of the kernel.
    pub factor: f64,
    /// Bytes that the kernel reads and writes.
    pub bytes: u64,
    /// Bytes of an element of the operator's first tensor.
    pub element_bytes: u64,
}

/// The kernels that an operator launches itself, without those of operators nested in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeKernels {
    pub kernels: Vec<LaunchedKernel>,
    /// Whether the table contains the operator.
    pub is_listed: bool,
    /// Name of the operator that GPUs run in place of this one.
    pub same_as: Option<&'static str>,
}

/// The kernels of the operators of an execution trace, by index of the node.
#[derive(Clone, Debug, Default)]
pub struct TraceKernels {
    nodes: BTreeMap<u32, NodeKernels>,
    /// Operators that launch nothing on a GPU, because an operator around them is one kernel there.
    hidden: BTreeSet<u32>,
}

impl TraceKernels {
    /// Lists the kernels of all operators below the given outermost nodes.
    ///
    /// An operator launches a kernel if it writes device memory that no nested operator wrote,
    /// unless it only allocates that memory. In a trace without an accelerator, all memory counts
    /// as device memory, except single values that were computed from single values alone.
    pub fn list(
        trace: &ExecutionTrace,
        tree: &NodeForest,
        outermost: impl Iterator<Item = u32>,
        ranks: u32,
    ) -> Self {
        let table = OperatorTable::shipped();
        let mut lister = Lister { trace, memory: Memory::find(trace), ranks };
        let mut found = Self::default();
        for root in outermost {
            found.hide(trace, tree, &table, root);
            // Storages that nested operators wrote, for each node whose parent is not visited yet.
            let mut written: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
            for at in order::inside_out(tree, root) {
                let children = tree.children(at).iter();
                let nested = children.filter_map(|child| written.remove(child));
                let mut inside: BTreeSet<u64> = nested.flatten().collect();
                if !found.hidden.contains(&at) {
                    let node = &trace.nodes[at as usize];
                    let row = table.find(trace.name(node));
                    if row.is_some_and(OperatorRow::is_whole) {
                        inside.clear();
                    }
                    let kernels = lister.kernels(node, &table, row, &mut inside);
                    found.nodes.insert(
                        at,
                        NodeKernels {
                            kernels,
                            is_listed: row.is_some(),
                            same_as: row.and_then(|row| row.same_as),
                        },
                    );
                }
                written.insert(at, inside);
            }
        }
        found
    }

    /// Returns the kernels of a node, or `None` if the node launches nothing on a GPU.
    pub fn get(&self, at: u32) -> Option<&NodeKernels> {
        self.nodes.get(&at)
    }

    /// Marks the operators inside of operators that are one kernel on a GPU.
    fn hide(
        &mut self,
        trace: &ExecutionTrace,
        tree: &NodeForest,
        table: &OperatorTable,
        root: u32,
    ) {
        let mut open = vec![(root, false)];
        while let Some((at, is_hidden)) = open.pop() {
            if is_hidden {
                self.hidden.insert(at);
            }
            let row = table.find(trace.name(&trace.nodes[at as usize]));
            let hides = is_hidden || row.is_some_and(OperatorRow::is_whole);
            open.extend(tree.children(at).iter().map(|child| (*child, hides)));
        }
    }
}

/// Which memory of a trace lies on a device.
enum Memory {
    /// Tensors state their device.
    Stated,
    /// No tensor lies on an accelerator, so the trace was recorded on a CPU. Storages in this set
    /// were computed from tensors, and would lie on the device. Others with a single value, such
    /// as the step counter of an optimizer, would stay on the host.
    Assumed(BTreeSet<u64>),
}

impl Memory {
    fn find(trace: &ExecutionTrace) -> Self {
        let mut tensors = trace.nodes.iter().flat_map(storage::tensors);
        if tensors.any(|tensor| storage::is_on_accelerator(trace, tensor)) {
            return Self::Stated;
        }
        let mut order: Vec<&Node> = trace.nodes.iter().collect();
        order.sort_by_key(|node| node.id);
        let mut computed: BTreeSet<u64> = BTreeSet::new();
        for node in order {
            let is_computed =
                |tensor: &&NodeTensor| tensor.elements > 1 || computed.contains(&tensor.storage);
            if storage::read(node).iter().any(is_computed) {
                computed.extend(storage::written(trace, node).iter().map(|one| one.storage));
            }
        }
        Self::Assumed(computed)
    }

    fn is_on_device(&self, trace: &ExecutionTrace, tensor: &NodeTensor) -> bool {
        match self {
            _ if tensor.elements == 0 => false,
            Self::Stated => storage::is_on_accelerator(trace, tensor),
            Self::Assumed(computed) => tensor.elements > 1 || computed.contains(&tensor.storage),
        }
    }
}

/// Lists the kernels of single operators of one trace.
struct Lister<'a> {
    trace: &'a ExecutionTrace,
    memory: Memory,
    ranks: u32,
}

impl Lister<'_> {
    fn kernels(
        &mut self,
        node: &Node,
        table: &OperatorTable,
        row: Option<&OperatorRow>,
        inside: &mut BTreeSet<u64>,
    ) -> Vec<LaunchedKernel> {
        let is_on = |tensor: &&NodeTensor| self.memory.is_on_device(self.trace, tensor);
        let read = storage::read(node);
        let outputs: Vec<&NodeTensor> =
            node.outputs.iter().flat_map(|output| output.value.tensors()).collect();
        let written = storage::written(self.trace, node);
        let name = self.trace.name(node);
        // Row updates do not list the memory that they write, and copies to the host write none of
        // the device.
        let forced = name.starts_with("torch::autograd::CppNode<SplitLookup")
            || (matches!(name, "aten::copy_" | "aten::_local_scalar_dense")
                && read.iter().any(is_on));
        let mut is_new = false;
        for tensor in written.iter().filter(|tensor| is_on(tensor)) {
            is_new |= inside.insert(tensor.storage);
        }
        let tokens = row.map_or(&[Token::OTHER][..], |row| row.kernels());
        // PyTorch returns at once from a copy of a tensor to itself.
        let is_same =
            |a: &NodeTensor, b: &NodeTensor| (a.storage, a.offset) == (b.storage, b.offset);
        let copies_itself =
            name == "aten::copy_" && matches!(read[..], [to, from, ..] if is_same(to, from));
        if tokens.is_empty() || copies_itself || !(is_new || forced) {
            return Vec::new();
        }
        let sides = Sides {
            read: read.into_iter().filter(is_on).collect(),
            outputs: outputs.into_iter().filter(is_on).collect(),
        };
        // A copy reads its destination first and then its source.
        let host_copy = match storage::read(node)[..] {
            [to, from, ..] if name == "aten::copy_" && matches!(self.memory, Memory::Stated) => {
                match (is_on(&to), is_on(&from)) {
                    (true, false) => Some("to_device"),
                    (false, true) => Some("to_host"),
                    _ => None,
                }
            }
            _ => None,
        };
        let list = tokens.iter().flat_map(|token| {
            let kernels = match token.kernel {
                "product" => sides.product().map_or(vec![Kernel::Moved], |one| vec![one]),
                "conv" => sides.conv(),
                "conv_backward" => sides.conv_backward(node),
                "layer_norm" => sides.rows(Kind::LayerNorm),
                "softmax" => sides.rows(Kind::Softmax),
                "attention" => sides.attention(),
                "lookup" => vec![sides.lookup()],
                "collective" => {
                    let operation = name.split_once(':').and_then(|of| parse_operation(of.1));
                    let operation = operation.unwrap_or(CollectiveOperation::AllReduce);
                    vec![Kernel::Collective { operation, ranks: self.ranks }]
                }
                "to_host" => vec![Kernel::HostCopy],
                "move" if host_copy.is_some() => vec![Kernel::HostCopy],
                _ => vec![Kernel::Moved],
            };
            let pass = table.pass(match token.kernel {
                "conv" | "conv_backward" | "attention" => "product",
                "layer_norm" | "softmax" => "norm",
                "collective" => "to_device",
                "move" => host_copy.unwrap_or("move"),
                other => other,
            });
            let bytes = match token.kernel {
                "index" | "sorted_index" => sides.indexed_bytes(),
                "update" => sides.bytes().saturating_add(2 * bytes(&sides.read)),
                "lookup" => sides.looked_up_bytes(),
                _ => sides.bytes(),
            };
            let element_bytes = sides.read.first().map_or(4, |tensor| tensor.element_bytes);
            kernels.into_iter().map(move |kernel| LaunchedKernel {
                kernel,
                pass,
                factor: token.factor,
                bytes,
                element_bytes,
            })
        });
        list.collect()
    }
}

/// The tensors of an operator that lie on the device.
struct Sides<'a> {
    read: Vec<&'a NodeTensor>,
    outputs: Vec<&'a NodeTensor>,
}

fn bytes(tensors: &[&NodeTensor]) -> u64 {
    let bytes = |tensor: &&NodeTensor| tensor.elements.saturating_mul(tensor.element_bytes);
    tensors.iter().map(bytes).fold(0, u64::saturating_add)
}

fn shape(tensor: &NodeTensor) -> Vec<u64> {
    tensor.shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).collect()
}

impl Sides<'_> {
    fn bytes(&self) -> u64 {
        bytes(&self.read).saturating_add(bytes(&self.outputs))
    }

    /// Returns the bytes of the rows, ids and results of a lookup, without rows that no id names.
    fn looked_up_bytes(&self) -> u64 {
        let Kernel::Lookup { ids, bags } = self.lookup() else { return self.bytes() };
        let results = bytes(&self.outputs);
        let row = results / bags.max(1);
        ids.saturating_mul(row.saturating_add(8)).saturating_add(results)
    }

    /// Returns the bytes of a gather or scatter, which touches only the indexed rows of the tensor
    /// that it indexes.
    fn indexed_bytes(&self) -> u64 {
        let Some((own, others)) = self.read.split_first() else { return self.bytes() };
        let others = bytes(others);
        let is_in_place = self.outputs.iter().any(|output| output.storage == own.storage);
        let moved = if is_in_place || self.outputs.is_empty() { 2 * others } else { others };
        let output = if is_in_place { 0 } else { 2 * bytes(&self.outputs) };
        moved.saturating_add(output)
    }

    /// Reads the sizes of a matrix product from the last two matrices among the inputs.
    fn product(&self) -> Option<Kernel> {
        let matrices = self.read.iter().filter(|tensor| tensor.shape.len() >= 2);
        let shapes: Vec<Vec<u64>> = matrices.map(|tensor| shape(tensor)).collect();
        let [.., a, b] = &shapes[..] else { return None };
        let (k, m) = (*a.last()?, a[a.len() - 2]);
        let [.., first, second] = b[..] else { return None };
        // The weights of a linear layer may be stored transposed, so the dimension equal to `k` is
        // skipped.
        let n = if first == k { second } else { first };
        let batch = a[..a.len() - 2].iter().copied().fold(1, u64::saturating_mul);
        product(batch, m, n, k)
    }

    /// Reads the sizes of a convolution from its input, its weights and its output.
    fn conv(&self) -> Vec<Kernel> {
        let found = match (&self.read[..], &self.outputs[..]) {
            ([input, weights, ..], [output, ..]) => conv(input, weights, output),
            _ => None,
        };
        vec![found.unwrap_or(Kernel::Moved)]
    }

    /// Lists the gradients of a convolution, of its input and of its weights, as far as the
    /// operator returns them. Each has the FLOPs of the forward pass.
    fn conv_backward(&self, node: &Node) -> Vec<Kernel> {
        let [gradient, input, weights, ..] = &self.read[..] else { return vec![Kernel::Moved] };
        let outputs = node.outputs.iter().filter_map(|output| output.value.tensor());
        let gradients = outputs.filter(|one| one.elements > 0 && one.shape.len() > 2).count();
        match conv(input, weights, gradient) {
            Some(kernel) => vec![kernel; gradients.max(1)],
            None => vec![Kernel::Moved],
        }
    }

    /// Reads the sizes of a normalization over rows from the first tensor. Its last dimension is a
    /// row, unless a vector of weights is as long as several dimensions.
    fn rows(&self, kind: Kind) -> Vec<Kernel> {
        let Some(input) = self.read.first() else { return vec![Kernel::Moved] };
        let columns = shape(input).last().copied().unwrap_or(1).max(1);
        let work = Work::new(kind, &[(input.elements / columns).max(1), columns]);
        vec![work.map_or(Kernel::Moved, |work| Kernel::Learned(work, 1.0))]
    }

    /// Lists the two products of an attention from the shapes of queries and keys.
    fn attention(&self) -> Vec<Kernel> {
        let shapes: Vec<Vec<u64>> = self.read.iter().map(|tensor| shape(tensor)).collect();
        let tensors: Vec<&[u64; 4]> =
            shapes.iter().filter_map(|sizes| sizes.as_slice().try_into().ok()).collect();
        let [[b, h, m, d], [_, _, n, _], ..] = tensors[..] else { return vec![Kernel::Moved] };
        let both = [product(b * h, *m, *n, *d), product(b * h, *m, *d, *n)];
        both.into_iter().flatten().collect()
    }

    /// Reads the numbers of ids and bags of a lookup. The offsets of the bags follow the ids, with
    /// one entry more than there are bags if the last entry is the end.
    fn lookup(&self) -> Kernel {
        let bags = self.outputs.iter().filter_map(|tensor| shape(tensor).first().copied());
        let samples = bags.max().unwrap_or(1).max(1);
        let lists = self.read.iter().filter(|tensor| tensor.shape.len() == 1);
        let lists: Vec<u64> = lists
            .filter(|tensor| tensor.element_bytes == 8)
            .map(|tensor| tensor.elements)
            .collect();
        let pair = lists
            .windows(2)
            .find(|pair| pair[1] > 1 && (pair[1] % samples == 0 || (pair[1] - 1) % samples == 0));
        match pair {
            Some([ids, offsets]) => Kernel::Lookup { ids: *ids, bags: offsets - offsets % samples },
            _ => Kernel::Lookup { ids: 0, bags: samples },
        }
    }
}

fn product(batch: u64, m: u64, n: u64, k: u64) -> Option<Kernel> {
    let work = match batch {
        1 => Work::new(Kind::Linear, &[m, n, k]),
        batch => Work::new(Kind::Bmm, &[batch, m, n, k]),
    };
    Some(Kernel::Learned(work.ok()?, 1.0))
}

/// Describes a convolution by the square convolution that is nearest to it. Rectangular windows and
/// images become squares of about the same area, and groups become fewer input channels. The factor
/// corrects the FLOPs.
fn conv(input: &NodeTensor, weights: &NodeTensor, output: &NodeTensor) -> Option<Kernel> {
    let (input, weights, output) = (shape(input), shape(weights), shape(output));
    let [batch, _, height, width] = &input[..] else { return None };
    let [channels_out, channels_in, rows, columns] = &weights[..] else { return None };
    let [.., out_h, out_w] = &output[..] else { return None };
    let square = |a: u64, b: u64| ((a as f64 * b as f64).sqrt().round() as u64).max(1);
    let (kernel, size, out) =
        (square(*rows, *columns), square(*height, *width), square(*out_h, *out_w));
    let stride = ((size as f64 / out as f64).round() as u64).max(1);
    let padding = ((out - 1) * stride + kernel).saturating_sub(size).div_ceil(2);
    let sizes = [*batch, *channels_in, *channels_out, kernel, size, stride, padding];
    let work = Work::new(Kind::Conv, &sizes).ok()?;
    let flops = [*batch, *channels_out, *out_h, *out_w, *channels_in, *rows, *columns];
    let flops = flops.iter().map(|size| *size as f64).product::<f64>() * 2.0;
    Some(Kernel::Learned(work, flops / work.flops_and_bytes().0.max(1.0)))
}

impl LaunchedKernel {
    /// Returns whether recorded work of the operator fits this kernel. Copies are made by other
    /// calls in each direction, and the host waits for those to it.
    pub fn is_done_by(&self, recorded: &LaunchedWork) -> bool {
        let is_of_host = |way| matches!(way, Direction::ToDevice | Direction::ToHost);
        let way = calls::direction(&recorded.name);
        match (&self.kernel, self.pass.name) {
            (Kernel::HostCopy, "to_host") => way == Direction::ToHost,
            (Kernel::HostCopy, _) => way == Direction::ToDevice,
            (_, "move") => !is_of_host(way),
            _ => true,
        }
    }

    /// Returns the calls that launch the kernel, for operators that were never recorded. A copy to
    /// the host is awaited, because the host reads its result.
    pub fn calls(&self, launch: &str, stream: i32) -> Vec<ApiCall> {
        let collective = match self.kernel {
            Kernel::Collective { operation, .. } => Some((operation_name(operation), self.bytes)),
            _ => None,
        };
        let is_copy = self.kernel == Kernel::HostCopy;
        let work = LaunchedWork {
            kind: if is_copy { WorkKind::Copy } else { WorkKind::Kernel },
            name: self.pass.name.to_owned(),
            details: [(self.to_string(), 1)].into(),
            bytes: is_copy.then_some(self.bytes),
            // Collectives run on a stream of their own.
            stream: if collective.is_some() { stream + 1 } else { stream },
            collective,
        };
        let name = if is_copy { "cudaMemcpyAsync" } else { launch };
        let mut calls = vec![ApiCall::launch(name, work)];
        if self.pass.name == "to_host" {
            calls.push(ApiCall::wait("cudaStreamSynchronize", vec![stream]));
        }
        calls
    }
}

/// Formats a kernel as its kind and its sizes.
impl fmt::Display for LaunchedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kernel {
            Kernel::Learned(work, 1.0) => write!(f, "{work}")?,
            Kernel::Learned(work, factor) => write!(f, "{factor:.2} of {work}")?,
            Kernel::Lookup { ids, bags } => write!(f, "lookup of {ids} ids in {bags} bags")?,
            _ => write!(f, "{}", self.pass.name)?,
        }
        write!(f, ", {} bytes", self.bytes)
    }
}
