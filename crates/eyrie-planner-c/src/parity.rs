//! Parity of a group's blocks: XOR for one parity block, Reed-Solomon for more. Both are linear:
//! the parity of a change, added to the old parity, is the new parity.

use std::ffi::c_int;

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

fn xor(into: &mut [u8], block: &[u8]) {
    into.iter_mut().zip(block).for_each(|(a, b)| *a ^= b);
}

/// Parity blocks of `data` (`None` is a block of zeros), each as long as `len`, which is even.
pub fn encode(data: &[Option<&[u8]>], parity: &mut [&mut [u8]], len: usize) -> Result<(), String> {
    if let [only] = parity {
        only.fill(0);
        data.iter().flatten().for_each(|block| xor(only, block));
        return Ok(());
    }
    let failed = |e: reed_solomon_simd::Error| e.to_string();
    let mut encoder = ReedSolomonEncoder::new(data.len(), parity.len(), len).map_err(failed)?;
    let zeros = vec![0; if data.iter().any(Option::is_none) { len } else { 0 }];
    for block in data {
        encoder.add_original_shard(block.unwrap_or(&zeros)).map_err(failed)?;
    }
    let encoded = encoder.encode().map_err(failed)?;
    parity.iter_mut().zip(encoded.recovery_iter()).for_each(|(to, from)| to.copy_from_slice(from));
    Ok(())
}

/// The data block `wanted` from the other blocks (`None` is lost).
pub fn decode(
    data: &[Option<&[u8]>],
    parity: &[Option<&[u8]>],
    wanted: usize,
    out: &mut [u8],
) -> Result<(), String> {
    if let [only] = parity {
        let lost = data.iter().filter(|block| block.is_none()).count();
        let (Some(only), 1) = (only, lost) else {
            return Err(format!("{lost} blocks and the parity of {} are lost", data.len()));
        };
        out.copy_from_slice(only);
        data.iter().flatten().for_each(|block| xor(out, block));
        return Ok(());
    }
    let failed = |e: reed_solomon_simd::Error| e.to_string();
    let mut decoder =
        ReedSolomonDecoder::new(data.len(), parity.len(), out.len()).map_err(failed)?;
    for (i, block) in data.iter().enumerate() {
        block.map_or(Ok(()), |b| decoder.add_original_shard(i, b)).map_err(failed)?;
    }
    for (i, block) in parity.iter().enumerate() {
        block.map_or(Ok(()), |b| decoder.add_recovery_shard(i, b)).map_err(failed)?;
    }
    let decoded = decoder.decode().map_err(failed)?;
    let block = decoded.restored_original(wanted).ok_or("the block wanted is not lost")?;
    out.copy_from_slice(block);
    Ok(())
}

/// # Safety
/// Each of the `count` pointers is NULL or points to `len` readable bytes.
unsafe fn blocks<'a>(
    pointers: *const *const u8,
    count: usize,
    len: usize,
) -> Vec<Option<&'a [u8]>> {
    // SAFETY: the caller promises `count` pointers.
    let pointers = unsafe { std::slice::from_raw_parts(pointers, count) };
    let block = |&p: &*const u8| {
        // SAFETY: the caller promises `len` readable bytes where the pointer is not NULL.
        (!p.is_null()).then(|| unsafe { std::slice::from_raw_parts(p, len) })
    };
    pointers.iter().map(block).collect()
}

/// Computes `parities` blocks from `count` data blocks, all of `len` bytes (even). A NULL data
/// block is one of zeros. Returns 0, or 1 when these numbers cannot be encoded.
///
/// # Safety
/// `data` has `count` pointers to `len` readable bytes or NULL, `parity` has `parities` to `len`
/// writable bytes; none overlap.
#[no_mangle]
pub unsafe extern "C" fn eyrie_parity_encode(
    data: *const *const u8,
    count: usize,
    parity: *const *mut u8,
    parities: usize,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises `count` pointers to `len` readable bytes or NULL.
    let data = unsafe { blocks(data, count, len) };
    // SAFETY: the caller promises `parities` pointers.
    let mut parity: Vec<&mut [u8]> = unsafe { std::slice::from_raw_parts(parity, parities) }
        .iter()
        // SAFETY: the caller promises `len` writable bytes for each, and that none overlap.
        .map(|&p| unsafe { std::slice::from_raw_parts_mut(p, len) })
        .collect();
    encode(&data, &mut parity, len).is_err().into()
}

/// Computes the lost data block `wanted` from the others; NULL is a block that is lost. Returns 0,
/// or 1 when too many are.
///
/// # Safety
/// As [`eyrie_parity_encode`]; `out` has `len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn eyrie_parity_decode(
    data: *const *const u8,
    count: usize,
    parity: *const *const u8,
    parities: usize,
    len: usize,
    wanted: usize,
    out: *mut u8,
) -> c_int {
    // SAFETY: the caller promises pointers to `len` readable bytes or NULL, as many as given.
    let (data, parity) = unsafe { (blocks(data, count, len), blocks(parity, parities, len)) };
    // SAFETY: the caller promises `len` writable bytes at `out`, which overlap no block.
    let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
    decode(&data, &parity, wanted, out).is_err().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(data: &[Vec<u8>], parities: usize, len: usize) -> Vec<Vec<u8>> {
        let mut parity = vec![vec![0; len]; parities];
        let data: Vec<Option<&[u8]>> = data.iter().map(|d| Some(d.as_slice())).collect();
        let mut rooms: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        encode(&data, &mut rooms, len).unwrap();
        parity
    }

    proptest! {
        #[test]
        fn as_many_lost_blocks_as_parities_come_back(
            seed in any::<u64>(), count in 1usize..9, parities in 1usize..4, half in 1usize..200,
        ) {
            let len = 2 * half;
            let byte = |i: usize| (seed.wrapping_mul(i as u64 + 1) >> 32) as u8;
            let data: Vec<Vec<u8>> =
                (0..count).map(|d| (0..len).map(|i| byte(d * len + i)).collect()).collect();
            let parity = encoded(&data, parities, len);
            // Lose as many as there are parities, first data and then parity blocks.
            let from = seed as usize % count;
            let lost = |d: usize| (d + count - from) % count < parities;
            let left: Vec<Option<&[u8]>> =
                data.iter().enumerate().map(|(d, b)| (!lost(d)).then_some(b.as_slice())).collect();
            let parity: Vec<Option<&[u8]>> = parity.iter().map(|b| Some(b.as_slice())).collect();
            for wanted in (0..count).filter(|&d| lost(d)) {
                let mut out = vec![0; len];
                decode(&left, &parity, wanted, &mut out).unwrap();
                prop_assert_eq!(&out, &data[wanted]);
            }
        }

        #[test]
        fn the_parity_of_a_change_adds_up(seed in any::<u64>(), parities in 1usize..4) {
            let len = 64;
            let fill = |k: u64| (0..len).map(|i| (seed.wrapping_mul(k * 999 + i) >> 40) as u8).collect();
            let old: Vec<Vec<u8>> = vec![fill(1), fill(2), fill(3)];
            let mut new = old.clone();
            new[1] = fill(4);
            let mut change = vec![vec![0; len as usize]; 3];
            change[1] = old[1].iter().zip(&new[1]).map(|(a, b)| a ^ b).collect();
            let before = encoded(&old, parities, len as usize);
            let added = encoded(&change, parities, len as usize);
            let after = encoded(&new, parities, len as usize);
            for p in 0..parities {
                let sum: Vec<u8> = before[p].iter().zip(&added[p]).map(|(a, b)| a ^ b).collect();
                prop_assert_eq!(&sum, &after[p]);
            }
        }
    }

    #[test]
    fn more_lost_than_parities_is_refused() {
        let block = [1u8, 2];
        let mut out = [0; 2];
        for parities in 1..3 {
            let parity = vec![Some(&block[..]); parities];
            let mut data = vec![None; parities + 1];
            data.push(Some(&block[..]));
            assert!(decode(&data, &parity, 0, &mut out).is_err());
        }
    }
}
