//! SHA-256 (FIPS 180-4), for the hashes in a suite's list: too little to depend on a library for.

/// The digest as 64 hexadecimal digits.
pub fn hex(data: &[u8]) -> String {
    let primes: Vec<f64> = (2_u32..).filter(is_prime).take(64).map(f64::from).collect();
    let keys: Vec<u32> = primes.iter().map(|prime| first_bits(prime.cbrt())).collect();
    let mut state: Vec<u32> = primes[..8].iter().map(|prime| first_bits(prime.sqrt())).collect();
    let mut padded = data.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend((8 * data.len() as u64).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mixed = rounds(block, &keys, &state);
        state = state.iter().zip(mixed).map(|(word, mixed)| word.wrapping_add(mixed)).collect();
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// The state after the 64 rounds of one block.
fn rounds(block: &[u8], keys: &[u32], state: &[u32]) -> [u32; 8] {
    let mut words: Vec<u32> =
        block.chunks_exact(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect();
    for at in 16..64 {
        let (near, far) = (words[at - 2], words[at - 15]);
        let near = near.rotate_right(17) ^ near.rotate_right(19) ^ near >> 10;
        let far = far.rotate_right(7) ^ far.rotate_right(18) ^ far >> 3;
        words.push(words[at - 16].wrapping_add(far).wrapping_add(words[at - 7]).wrapping_add(near));
    }
    let mut now: [u32; 8] = state.try_into().unwrap();
    for (word, key) in words.iter().zip(keys) {
        let [a, b, c, d, e, f, g, h] = now;
        let mix = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let first = [h, mix, e & f ^ !e & g, *key, *word].into_iter().fold(0, u32::wrapping_add);
        let mix = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = mix.wrapping_add(a & b ^ a & c ^ b & c);
        now = [first.wrapping_add(second), a, b, c, d.wrapping_add(first), e, f, g];
    }
    now
}

fn is_prime(number: &u32) -> bool {
    (2..*number)
        .take_while(|divisor| divisor * divisor <= *number)
        .all(|by| !number.is_multiple_of(by))
}

/// The first 32 bits behind the point.
fn first_bits(root: f64) -> u32 {
    (root.fract() * 2_f64.powi(32)) as u32
}

#[test]
fn digests_are_those_of_the_standard() {
    let check = |data: &str, digest: &str| assert_eq!(hex(data.as_bytes()), digest);
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check(
        "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    );
}
