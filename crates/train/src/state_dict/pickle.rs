//! Reads the part of Python's pickle format that PyTorch state dicts use, without executing it.
//!
//! A pickle is a program for a stack machine that may call any Python function. This reader never
//! calls a function. The few names that build tensors ([`is_known`]) become plain values, and every
//! other name is an error. This file does not depend on archives or on the bytes of tensors.

/// Index of a value among all values of a pickle. Values refer to each other by index, because
/// lists and dicts are filled after they were memoized.
pub(super) type Id = usize;

/// One value that a pickle builds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PickleValue {
    /// A value that tensors do not need, such as `None`, a float or bytes.
    Other,
    /// An integer or a truth value.
    Int(i64),
    Text(String),
    /// A list or tuple.
    Sequence(Vec<Id>),
    /// A dict, with its entries in insertion order.
    Dict(Vec<(Id, Id)>),
    /// The name of a class or function.
    Name(String),
    /// A call of a class or function, which is not evaluated.
    Call {
        /// Name of the class or function.
        name: String,
        /// The arguments of the call, as a sequence.
        arguments: Id,
    },
    /// A persistent reference to data outside of the pickle, which is a tensor's storage.
    Reference(Id),
    /// A mark on the stack, at which a group of values begins.
    Mark,
}

/// All values of a pickle. `root` is the value that the pickle results in.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<PickleValue>,
    pub root: Id,
}

/// Returns whether state dicts need this class or function. Even known functions are never called.
pub(super) fn is_known(name: &str) -> bool {
    const KNOWN: [&str; 6] = [
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        "torch.Size",
        "torch.device",
    ];
    let is_storage = name.strip_prefix("torch.").is_some_and(|class| {
        class.ends_with("Storage") && class.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    KNOWN.contains(&name) || is_storage
}

impl Pickle {
    /// Reads a pickle of protocol 2 to 5.
    ///
    /// # Errors
    /// Returns a text with the defect and its byte, or with the name of an unknown class or
    /// function.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut machine = PickleMachine::new(bytes);
        loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Self { values: machine.values, root }),
                Err(problem) => return Err(format!("byte {at} of its pickle: {problem}")),
            }
        }
    }

    /// Returns the value of an id. Ids come from the same pickle, so the value exists.
    pub fn get(&self, id: Id) -> &PickleValue {
        &self.values[id]
    }

    /// Returns the entries of a dict or `OrderedDict`, or `None` for values of another type.
    pub fn dict(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            PickleValue::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the members of a list or tuple, or `None` for values of another type.
    pub fn sequence(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            PickleValue::Sequence(members) => Some(members),
            _ => None,
        }
    }

    /// Returns a string, or `None` for values of another type.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            PickleValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an integer, or `None` for values of another type.
    pub fn int(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            PickleValue::Int(value) => Some(*value),
            _ => None,
        }
    }
}

/// Interprets the opcodes of a pickle. The machine builds plain values and never calls a function.
struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<PickleValue>,
    stack: Vec<Id>,
    /// Memoized values, by number.
    memo: std::collections::BTreeMap<u64, Id>,
}

/// The outcome of an instruction. The last instruction of a pickle returns its result.
type Stepped = Result<Option<Id>, String>;

impl<'a> PickleMachine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let memo = std::collections::BTreeMap::new();
        Self { bytes, at: 0, values: Vec::new(), stack: Vec::new(), memo }
    }

    fn step(&mut self) -> Stepped {
        let code = self.take(1)?[0];
        match code {
            // The opcodes are those of Python's `pickletools`, for protocols 2 to 5.
            b'.' => return self.pop().map(Some),
            // Skip the protocol number and the length of a frame, which are not needed.
            0x80 => _ = self.take(1)?,
            0x95 => _ = self.take(8)?,
            b'(' => self.push(PickleValue::Mark),
            b'0' => _ = self.pop()?,
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code)?,
            b'N' => self.push(PickleValue::Other),
            0x88 | 0x89 => self.push(PickleValue::Int(i64::from(code == 0x88))),
            b'K' | b'M' | b'J' | 0x8a => self.integer(code)?,
            b'G' => {
                self.take(8)?;
                self.push(PickleValue::Other);
            }
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'B' | b'C' | 0x8e => self.string(code)?,
            b')' | b']' => self.push(PickleValue::Sequence(Vec::new())),
            b'}' => self.push(PickleValue::Dict(Vec::new())),
            0x85..=0x87 => self.short_tuple(usize::from(code - 0x84))?,
            b't' | b'l' => {
                let members = self.group()?;
                self.push(PickleValue::Sequence(members));
            }
            b'a' | b'e' | b's' | b'u' => self.fill(code)?,
            b'c' | 0x93 => self.name(code)?,
            b'R' | 0x81 => self.call()?,
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(PickleValue::Reference(id));
            }
            _ => return Err(format!("expected an opcode that state dicts use, got {code:#04x}")),
        }
        Ok(None)
    }

    fn push(&mut self, value: PickleValue) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id, String> {
        self.stack.pop().ok_or_else(|| "expected a value, the stack is empty".to_owned())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            let left = self.bytes.len() - self.at;
            return Err(format!("expected {count} more bytes, got {left}"));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Reads an unsigned little-endian number of up to eight bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    }

    fn remember(&mut self, code: u8) -> Result<(), String> {
        let number = match code {
            b'q' | b'h' => self.number(1)?,
            b'r' | b'j' => self.number(4)?,
            _ => self.memo.len() as u64,
        };
        if matches!(code, b'h' | b'j') {
            let id = self.memo.get(&number).copied();
            self.stack.push(id.ok_or_else(|| format!("nothing is memoized as {number}"))?);
            return Ok(());
        }
        let id = self.pop()?;
        self.stack.push(id);
        self.memo.insert(number, id);
        Ok(())
    }

    fn integer(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            b'J' => i64::from(self.number(4)? as u32 as i32),
            _ => {
                let bytes = self.number(1)? as usize;
                if bytes > 8 {
                    return Err(format!("expected an integer of at most 8 bytes, got {bytes}"));
                }
                let shift = 64 - 8 * bytes as u32;
                let value = self.number(bytes)?;
                // The highest bit of the number is its sign. Shifting left and then arithmetically
                // right extends the sign to 64 bits.
                if bytes == 0 { 0 } else { ((value << shift) as i64) >> shift }
            }
        };
        self.push(PickleValue::Int(value));
        Ok(())
    }

    fn string(&mut self, code: u8) -> Result<(), String> {
        let length_bytes = match code {
            0x8c | b'U' | b'C' => 1,
            b'X' | b'T' | b'B' => 4,
            _ => 8,
        };
        let length = self.number(length_bytes)? as usize;
        let bytes = self.take(length)?;
        if matches!(code, b'B' | b'C' | 0x8e) {
            self.push(PickleValue::Other);
            return Ok(());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "a text that is not UTF-8".to_owned())?;
        self.push(PickleValue::Text(text.to_owned()));
        Ok(())
    }

    fn short_tuple(&mut self, count: usize) -> Result<(), String> {
        let first = self.stack.len().checked_sub(count);
        let first = first.ok_or_else(|| format!("expected {count} values on the stack"))?;
        let members = self.stack.split_off(first);
        self.push(PickleValue::Sequence(members));
        Ok(())
    }

    /// Pops the values since the last mark, and the mark itself.
    fn group(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.stack.iter().rposition(|&id| self.values[id] == PickleValue::Mark);
        let mark = mark.ok_or_else(|| "expected a mark on the stack".to_owned())?;
        let members = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(members)
    }

    /// Adds one entry or a group of entries to a list or dict.
    fn fill(&mut self, code: u8) -> Result<(), String> {
        let added = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.group()?,
        };
        let target = *self.stack.last().ok_or_else(|| "expected a list or dict".to_owned())?;
        match &mut self.values[target] {
            PickleValue::Sequence(members) if matches!(code, b'a' | b'e') => members.extend(added),
            PickleValue::Dict(entries) if matches!(code, b's' | b'u') && added.len() % 2 == 0 => {
                entries.extend(added.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return Err("expected a list or dict to add values to".to_owned()),
        }
        Ok(())
    }

    fn name(&mut self, code: u8) -> Result<(), String> {
        let name = if code == b'c' {
            let (module, class) = (self.line()?, self.line()?);
            format!("{module}.{class}")
        } else {
            let (class, module) = (self.pop()?, self.pop()?);
            match (&self.values[module], &self.values[class]) {
                (PickleValue::Text(module), PickleValue::Text(class)) => {
                    format!("{module}.{class}")
                }
                _ => return Err("expected module and name of a class as two strings".to_owned()),
            }
        };
        // An unknown name may be any Python function, so it is refused instead of kept.
        if !is_known(&name) {
            return Err(format!(
                "expected tensors in dicts, got the class or function {name:?}, which is not run"
            ));
        }
        self.push(PickleValue::Name(name));
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        let end = end.ok_or_else(|| "expected a name that ends with a newline".to_owned())?;
        let line = self.take(end + 1)?;
        Ok(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Handles the call of a function or class. An `OrderedDict` becomes a dict, and every other
    /// call is kept unevaluated.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, name) = (self.pop()?, self.pop()?);
        let PickleValue::Name(name) = &self.values[name] else {
            return Err("expected the name of a class to call".to_owned());
        };
        if name == "collections.OrderedDict" {
            self.push(PickleValue::Dict(Vec::new()));
        } else {
            let name = name.clone();
            self.push(PickleValue::Call { name, arguments });
        }
        Ok(())
    }

    /// Drops the attributes of an object, such as the `_metadata` of a state dict.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last().map(|&id| &self.values[id]) {
            Some(PickleValue::Dict(_) | PickleValue::Call { .. }) => Ok(()),
            _ => Err("expected an object whose attributes are set".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pickle, PickleValue};

    /// The output of `pickle.dumps({"a": [1, -2, (3, None)], "b": 70000}, protocol=2)`.
    const PLAIN: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffK\x03N\x86q\x03eX\x01\x00\x00\x00bq\x04Jp\x11\x01\x00u.";

    #[test]
    fn dicts_lists_and_numbers_are_read() {
        let pickle = Pickle::read(PLAIN).unwrap();
        let entries = pickle.dict(pickle.root).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(pickle.text(entries[0].0), Some("a"));
        let list = pickle.sequence(entries[0].1).unwrap();
        assert_eq!(pickle.int(list[1]), Some(-2));
        let tuple = pickle.sequence(list[2]).unwrap();
        assert_eq!((pickle.int(tuple[0]), pickle.get(tuple[1])), (Some(3), &PickleValue::Other));
        assert_eq!(pickle.int(entries[1].1), Some(70_000));
    }

    #[test]
    fn unknown_names_are_refused_and_damage_does_not_panic() {
        // The fixtures are the output of `pickle.dumps` for an object whose `__reduce__` returns
        // `os.system, ("id",)`.
        for code in [
            &b"\x80\x02cposix\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03."[..],
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
        ] {
            let refused = Pickle::read(code).unwrap_err();
            assert!(refused.contains("\"posix.system\", which is not run"), "{refused}");
        }
        for end in 0..PLAIN.len() {
            assert!(Pickle::read(&PLAIN[..end]).is_err(), "{end}");
            for byte in [0, 0x80, b'(', b't', b'u', b'R', b'b', b'Q', b'.', 0xff] {
                let mut bytes = PLAIN.to_vec();
                bytes[end] = byte;
                let _ = Pickle::read(&bytes);
            }
        }
    }
}
