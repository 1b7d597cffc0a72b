//! Damaged files: each kind of damage has its error, and none makes the reader panic or run on.

mod common;

use common::Content;
use mainstay_formats::bbolt::{CheckReport, MetaError, PAGE_SIZE, ReadError, Reader};
use proptest::prelude::*;

const PAGE: usize = PAGE_SIZE as usize;
const FREE_LIST: u64 = 32;
const HIGH_WATER: u64 = 40;
const TXID: u64 = 48;

/// A file with a tree of three levels, an inline bucket, an empty one and a value of many pages.
fn sample() -> Content {
    let mut content = Content::default();
    for row in 0..3000u64 {
        content.put("key", row.to_be_bytes(), vec![row as u8; 200]);
    }
    content.put("large", "a", vec![1; 20_000]);
    content.put("large", "b", vec![2; 300]);
    content.put("meta", "term", [0; 8]);
    content.0.entry("lease".to_owned()).or_default();
    content
}

fn put_u64(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get_u64(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"))
}

/// Sets a field of the meta in the page at `page_at`, and the checksum after it.
fn set_meta(file: &mut [u8], page_at: usize, field: u64, value: u64) {
    let meta = page_at + 16;
    put_u64(file, meta + field as usize, value);
    let sum = file[meta..meta + 56].iter().fold(0xcbf29ce484222325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3)
    });
    put_u64(file, meta + 56, sum);
}

/// Sets a field in both metas of a file of our own page size.
fn set_metas(file: &mut [u8], field: u64, value: u64) {
    set_meta(file, 0, field, value);
    set_meta(file, PAGE, field, value);
}

/// The first page with these flags, by its offset.
fn page_with(file: &[u8], flags: u8) -> usize {
    (2 * PAGE..file.len()).step_by(PAGE).find(|&at| file[at + 8] == flags).expect("such a page")
}

/// Reads everything in every way that there is.
fn read_all(file: &[u8]) -> Result<(CheckReport, Content), ReadError> {
    let reader = Reader::open(file)?;
    let content = Content::read(&reader)?;
    for name in reader.buckets()? {
        if let Some(bucket) = reader.bucket(&name)? {
            reader.last(&bucket)?;
            reader.get(&bucket, &500u64.to_be_bytes())?;
        }
    }
    Ok((reader.check()?, content))
}

fn error_of(file: &[u8]) -> ReadError {
    read_all(file).map(|(report, _)| report).expect_err("a damaged file")
}

#[test]
fn one_good_meta_is_enough() {
    let content = sample();
    let good = content.file();
    for page_at in [0, PAGE] {
        for byte in 16..16 + 64 {
            let mut file = good.clone();
            file[page_at + byte] ^= 0x10;
            assert_eq!(read_all(&file).unwrap().1, content, "byte {byte} of page at {page_at}");
        }
    }
}

#[test]
fn the_meta_with_the_higher_transaction_counts() {
    let mut file = sample().file();
    set_meta(&mut file, PAGE, 16, 3);
    assert_eq!(Reader::open(file.as_slice()).unwrap().meta().root, 3);
    set_meta(&mut file, 0, TXID, 2);
    let meta = *Reader::open(file.as_slice()).unwrap().meta();
    assert_eq!((meta.txid, meta.root + 1), (2, meta.high_water));
}

#[test]
fn two_damaged_metas_are_told() {
    let mut file = sample().file();
    file[16] ^= 1;
    file[PAGE + 16 + 20] ^= 1;
    let error = error_of(&file);
    let ReadError::NoMeta { first, second } = &error else { panic!("{error}") };
    assert!(matches!(first, MetaError::Magic(_)), "{first}");
    assert!(matches!(second, MetaError::Checksum { .. }), "{second}");
    assert!(error.to_string().starts_with("no usable meta page: page 0: magic number is"));
    assert!(matches!(error_of(b""), ReadError::NoMeta { .. }));
    assert!(matches!(error_of(&[0; 100_000]), ReadError::NoMeta { .. }));
}

#[test]
fn a_cut_file_is_told_at_once() {
    let good = sample().file();
    for length in [PAGE, 2 * PAGE, good.len() - PAGE, good.len() - 1] {
        let error = Reader::open(&good[..length]).unwrap_err();
        let ReadError::Truncated { expected, found, .. } = error else { panic!("{error}") };
        assert_eq!((expected, found), (good.len() as u64, length as u64));
    }
    for length in 0..PAGE + 100 {
        assert!(Reader::open(&good[..length]).is_err(), "cut to {length}");
    }
}

#[test]
fn bytes_behind_the_pages_in_use_are_ignored() {
    let content = sample();
    let mut file = content.file();
    file.extend_from_slice(&[0xAA; 32]);
    assert_eq!(read_all(&file).unwrap().1, content);
    file.resize(file.len() + 1_000_000, 0xAA);
    assert_eq!(read_all(&file).unwrap().1, content);
}

#[test]
fn every_kind_of_damage_has_its_error() {
    let good = sample().file();
    let (leaf, branch) = (page_with(&good, 2), page_with(&good, 1));
    let high_water = (good.len() / PAGE) as u64;
    let damaged = |change: &dyn Fn(&mut [u8])| {
        let mut file = good.clone();
        change(&mut file);
        error_of(&file)
    };
    let set = |at: usize, value: u64| damaged(&|file| put_u64(file, at, value));

    let error = set(leaf, 77);
    assert!(matches!(error, ReadError::PageId { found: 77, .. }), "{error}");
    let error = damaged(&|file| file[leaf + 8] = 3);
    assert!(matches!(error, ReadError::PageFlags { flags: 3, .. }), "{error}");
    let error = damaged(&|file| file[leaf + 13] = 0xFF);
    assert!(matches!(error, ReadError::Overflow { .. }), "{error}");
    // Element 0 of a leaf: flags, position, key size, value size.
    for field in [4, 8, 12] {
        let error = damaged(&|file| file[leaf + 16 + field + 2] = 0xFF);
        assert!(matches!(error, ReadError::Element { index: 0, .. }), "{error}");
    }
    let error = damaged(&|file| file[leaf + 16 + 8..leaf + 16 + 12].fill(0));
    assert!(matches!(error, ReadError::Element { key: 0, .. }), "{error}");
    let error = damaged(&|file| file[leaf + 10..leaf + 12].fill(0xFF));
    assert!(matches!(error, ReadError::Element { count: 0xFFFF, .. }), "{error}");
    // Element 1 becomes a bucket; its value says that the root is page 0x0101010101010101.
    let error = damaged(&|file| file[leaf + 32] = 1);
    assert!(matches!(error, ReadError::PageOutOfRange { .. }), "{error}");
    // The first bucket's value becomes too short.
    let root = good.len() - PAGE;
    let error = damaged(&|file| file[root + 16 + 12] = 15);
    assert!(matches!(error, ReadError::BucketHeader { length: 15, .. }), "{error}");

    let error = damaged(&|file| file[branch + 10..branch + 12].fill(0));
    assert!(matches!(error, ReadError::EmptyBranch { .. }), "{error}");
    // Element 1 of a branch: position, key size, page.
    let child = branch + 16 + 16 + 8;
    for page in [0, 1, high_water, u64::MAX] {
        let error = set(child, page);
        assert!(matches!(error, ReadError::PageOutOfRange { page: found, .. } if found == page));
    }
    let error = set(child, get_u64(&good, branch));
    assert!(matches!(error, ReadError::KeyOrder { .. } | ReadError::Cycle { .. }), "{error}");
    let error = set(child, get_u64(&good, branch + 16 + 8));
    assert!(matches!(error, ReadError::KeyOrder { .. }), "{error}");
}

/// Only the check looks at these; a walk over the rows can't see them.
#[test]
fn the_check_sees_what_a_walk_does_not() {
    let good = sample().file();
    let branch = page_with(&good, 1);
    let key = branch + 16 + get_u64(&good, branch + 16 + 16) as u32 as usize + 16;
    let mut file = good.clone();
    // The second key of a branch is not the first key of its second child any more.
    file[key + 7] += 1;
    let reader = Reader::open(file.as_slice()).unwrap();
    Content::read(&reader).unwrap();
    let error = reader.check().unwrap_err();
    assert!(matches!(error, ReadError::KeyOrder { index: 0, .. }), "{error}");
    assert!(error.to_string().ends_with("(below the key in the parent)"), "{error}");
}

/// A branch whose only child is itself, and a leaf without rows that comes again and again.
#[test]
fn circles_end() {
    let mut file = sample().file();
    let root = file.len() - PAGE;
    let id = (root / PAGE) as u64;
    file[root + 8] = 1;
    file[root + 10..root + 12].copy_from_slice(&1u16.to_le_bytes());
    file[root + 16..root + 24].copy_from_slice(&[16, 0, 0, 0, 1, 0, 0, 0]);
    put_u64(&mut file, root + 24, id);
    let error = Reader::open(file.as_slice()).unwrap().buckets().unwrap_err();
    assert!(matches!(error, ReadError::Cycle { .. }), "{error}");
    let error = Reader::open(file.as_slice()).unwrap().check().unwrap_err();
    assert!(matches!(error, ReadError::ReferredTwice { .. }), "{error}");

    let count = 200u16;
    let leaf = page_with(&file, 2);
    file[leaf + 10..leaf + 12].fill(0);
    file[root + 10..root + 12].copy_from_slice(&count.to_le_bytes());
    for element in 0..count {
        let at = root + 16 + 16 * usize::from(element);
        let position = 16 * u32::from(count - element) + u32::from(element);
        file[at..at + 4].copy_from_slice(&position.to_le_bytes());
        file[at + 4..at + 8].copy_from_slice(&1u32.to_le_bytes());
        put_u64(&mut file, at + 8, (leaf / PAGE) as u64);
    }
    let error = Reader::open(file.as_slice()).unwrap().buckets().unwrap_err();
    assert!(matches!(error, ReadError::Cycle { .. }), "{error}");
}

/// Appends a list of free pages and as many pages as it names; returns the offset of the list.
fn with_free_list(file: &mut Vec<u8>, long_count: bool) -> usize {
    let list = file.len();
    let id = (list / PAGE) as u64;
    file.resize(list + 4 * PAGE, 0xEE);
    file[list..list + PAGE].fill(0);
    put_u64(file, list, id);
    file[list + 8] = 0x10;
    let mut at = list + 16;
    if long_count {
        file[list + 10..list + 12].fill(0xFF);
        put_u64(file, at, 3);
        at += 8;
    } else {
        file[list + 10] = 3;
    }
    for page in 1..=3 {
        put_u64(file, at, id + page);
        at += 8;
    }
    set_metas(file, FREE_LIST, id);
    set_metas(file, HIGH_WATER, id + 4);
    list
}

#[test]
fn files_with_a_list_of_free_pages() {
    let content = sample();
    for long_count in [false, true] {
        let mut file = content.file();
        let list = with_free_list(&mut file, long_count);
        let (report, found) = read_all(&file).unwrap();
        assert_eq!((report.free, &found), (3, &content));

        let ids = list + 16 + if long_count { 8 } else { 0 };
        let damaged = |at: usize, value: u64| {
            let mut file = file.clone();
            put_u64(&mut file, at, value);
            error_of(&file)
        };
        assert!(matches!(damaged(ids, 2), ReadError::UsedAndFree { page: 2 }));
        let lost = (list / PAGE) as u64 + 1;
        let twice = damaged(ids, lost + 1);
        assert!(matches!(twice, ReadError::ReferredTwice { page } if page == lost + 1));
        assert!(matches!(damaged(ids, lost + 100), ReadError::PageOutOfRange { .. }));
        let mut fewer = file.clone();
        if long_count {
            put_u64(&mut fewer, list + 16, 2);
        } else {
            fewer[list + 10] = 2;
        }
        assert!(matches!(error_of(&fewer), ReadError::Lost { page } if page == lost + 2));
        if long_count {
            assert!(matches!(
                damaged(list + 16, u64::MAX),
                ReadError::FreeListCount { count: u64::MAX, .. }
            ));
        }
    }
    let mut file = content.file();
    set_metas(&mut file, FREE_LIST, 2);
    assert!(matches!(error_of(&file), ReadError::PageFlags { page: 2, .. }));
}

/// A hand-made file of another page size: one bucket with one row.
fn with_page_size(page: usize) -> Vec<u8> {
    let mut file = vec![0; 4 * page];
    for id in 0..2usize {
        let at = id * page;
        put_u64(&mut file, at, id as u64);
        file[at + 8] = 4;
        put_u64(&mut file, at + 16, 0x2_ED0C_DAED);
        put_u64(&mut file, at + 24, page as u64);
        put_u64(&mut file, at + 32, 2);
        put_u64(&mut file, at + 48, u64::MAX);
        put_u64(&mut file, at + 56, 4);
        set_meta(&mut file, at, TXID, id as u64);
    }
    for (id, flags, key, value) in
        [(2usize, 1u8, "key", 3u128.to_le_bytes()), (3, 0, "row", *b"sixteen bytes...")]
    {
        let at = id * page;
        put_u64(&mut file, at, id as u64);
        file[at + 8] = 2;
        file[at + 10] = 1;
        file[at + 16] = flags;
        file[at + 20] = 16;
        file[at + 24] = 3;
        file[at + 28] = 16;
        file[at + 32..at + 35].copy_from_slice(key.as_bytes());
        file[at + 35..at + 51].copy_from_slice(&value);
    }
    file
}

#[test]
fn other_page_sizes_are_read_even_without_the_first_meta() {
    for page in [1024, 2048, 4096, 8192, 16384, 32768, 65536] {
        let mut file = with_page_size(page);
        for _ in 0..2 {
            let reader = Reader::open(file.as_slice()).unwrap();
            assert_eq!(reader.meta().page_size, page as u64);
            assert_eq!(reader.check().unwrap().rows, 1);
            let bucket = reader.bucket(b"key").unwrap().unwrap();
            let value = reader.get(&bucket, b"row").unwrap();
            assert_eq!(value.as_deref(), Some(b"sixteen bytes...".as_slice()));
            file[20] = 9;
        }
    }
}

/// A file small enough that random damage hits something.
fn small() -> Content {
    let mut content = Content::default();
    for row in 0..300u64 {
        content.put("key", row.to_be_bytes(), vec![row as u8; 60]);
    }
    content.put("large", "a", vec![1; 9000]);
    content.put("meta", "term", [0; 8]);
    content.0.entry("lease".to_owned()).or_default();
    content
}

/// Offsets where something is that the structure depends on, more often than others.
fn offset(length: usize) -> impl Strategy<Value = usize> {
    let pages = length / PAGE;
    prop_oneof![
        3 => (0..pages, 0..48usize).prop_map(|(page, byte)| page * PAGE + byte),
        2 => (0..pages, 0..1200usize).prop_map(|(page, byte)| page * PAGE + byte),
        1 => 0..length,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// bbolt has no checksum over rows: a flipped byte may give other rows. It must not give more
    /// of them than there is room for, nor a panic or an endless walk.
    #[test]
    fn flipped_bytes_never_panic(
        flips in proptest::collection::vec((offset(small().file().len()), any::<u8>()), 1..6),
    ) {
        let mut file = small().file();
        for (at, value) in flips {
            file[at] = value;
        }
        match read_all(&file) {
            Ok((report, _)) => prop_assert!(report.rows <= (file.len() / 17) as u64),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        if let Ok(reader) = Reader::open(file.as_slice()) {
            let _ = mainstay_formats::snapshot::status(&reader);
        }
    }

    /// Pages in each other's place, with or without their own number.
    #[test]
    fn moved_pages_never_panic(
        moves in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..4),
    ) {
        let mut file = small().file();
        let pages = file.len() / PAGE - 2;
        for (from, to, renumber) in moves {
            let (from, to) = ((from.index(pages) + 2) * PAGE, (to.index(pages) + 2) * PAGE);
            file.copy_within(from..from + PAGE, to);
            if renumber {
                put_u64(&mut file, to, (to / PAGE) as u64);
            }
        }
        match read_all(&file) {
            Ok((report, _)) => prop_assert!(report.rows <= (file.len() / 17) as u64),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
