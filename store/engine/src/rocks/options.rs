//! How RocksDB is set up. The reasons stand here; measure with `examples/engine_bench.rs` before
//! changing one.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType,
    DataBlockIndexType, LogLevel, Options, WriteBufferManager,
};

use crate::Family;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Budgets of an engine on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksOptions {
    /// Memory for blocks of files, their indexes and filters.
    pub cache_bytes: usize,
    /// Memory for what is not in files yet. Half of it is filled before a flush starts; the other
    /// half takes what is written while the flush runs. A disk that cannot keep up may make it half
    /// as much again, then the writer waits.
    pub memtable_bytes: usize,
    /// Threads for flushes and compactions together.
    pub background_jobs: i32,
    /// Files that are kept open.
    pub open_files: i32,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 * MIB,
            memtable_bytes: 64 * MIB,
            background_jobs: 2,
            open_files: 512,
        }
    }
}

/// Options of the database as a whole.
pub(super) fn database(budgets: &RocksOptions, memtables: &WriteBufferManager) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // Without a log of its own, this is what keeps the families at one point.
    options.set_atomic_flush(true);
    // A backstop: flushes are started before this is reached.
    options.set_write_buffer_manager(memtables);
    // One thread writes. Plain inserts are cheaper, and sequential ones go straight to their place.
    options.set_allow_concurrent_memtable_write(false);
    options.set_max_background_jobs(budgets.background_jobs);
    options.set_max_open_files(budgets.open_files);
    // Small steps of write-back, so that the log's fdatasync never waits behind a whole new file.
    options.set_bytes_per_sync(MIB as u64);
    // The last reader of a file must not be the one to delete it.
    options.set_avoid_unnecessary_blocking_io(true);
    options.set_manifest_preallocation_size(64 * KIB);
    options.set_log_level(LogLevel::Warn);
    options.set_max_log_file_size(4 * MIB);
    options.set_keep_log_file_num(2);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

/// All families with their options. RocksDB wants its own `default` beside them; it stays empty.
pub(super) fn families(budgets: &RocksOptions, cache: &Cache) -> Vec<ColumnFamilyDescriptor> {
    let mut all = vec![ColumnFamilyDescriptor::new("default", Options::default())];
    all.extend(Family::ALL.map(|family| {
        ColumnFamilyDescriptor::new(family.name(), family_options(family, budgets, cache))
    }));
    all
}

fn family_options(family: Family, budgets: &RocksOptions, cache: &Cache) -> Options {
    let mut options = Options::default();
    // Never reached: the engine flushes all families when half of it is used by all together.
    options.set_write_buffer_size(budgets.memtable_bytes);
    // One that fills, one that is flushed, one more for a disk that is late. The writer waits then.
    options.set_max_write_buffer_number(3);
    // A flush makes a small file in every family, so a burst piles up many of them. They are cheap
    // to keep for a while; the writer has to wait only when compaction is far behind.
    options.set_level_zero_slowdown_writes_trigger(40);
    options.set_level_zero_stop_writes_trigger(64);
    // Five families grow by blocks of this size; the default of a MiB would be most of a small store.
    options.set_arena_block_size(128 * KIB);
    // One compression for all levels: files of the append-only families do not overlap, so they
    // move down by a note in the manifest, which RocksDB only does when nothing has to be recoded.
    options.set_compression_type(DBCompressionType::Lz4);
    // Freeing a large file holds up the syncs of the log where the file system passes it on to the
    // disk at once (mount option `discard`): small files, few in one compaction.
    options.set_target_file_size_base(8 * MIB as u64);
    options.set_max_compaction_bytes(16 * MIB as u64);
    options.set_max_bytes_for_level_base(128 * MIB as u64);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    // Indexes and filters live in the cache budget, in pieces: the memory of a big store is then
    // what is used, not what is there.
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_metadata_block_size(4 * KIB);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_pin_top_level_index_and_filter(true);
    match family {
        Family::Key => {
            table.set_block_size(8 * KIB);
            point_lookups(&mut table);
            // Who asks for a revision knows that it is there: the last level needs no filter. The
            // filters above it pass by files that hold only deletions of old revisions.
            options.set_optimize_filters_for_hits(true);
            compact_deletions(&mut options);
        }
        Family::Index => {
            table.set_block_size(4 * KIB);
            point_lookups(&mut table);
            // A put of a new key asks here for a key that nobody has.
            options.set_memtable_whole_key_filtering(true);
            options.set_memtable_prefix_bloom_ratio(0.01);
            compact_deletions(&mut options);
        }
        // Read by seeking, which no filter helps.
        Family::History | Family::LeaseKey => {
            table.set_block_size(8 * KIB);
            compact_deletions(&mut options);
        }
        Family::System => {
            table.set_block_size(4 * KIB);
            point_lookups(&mut table);
        }
    }
    options.set_block_based_table_factory(&table);
    options
}

fn point_lookups(table: &mut BlockBasedOptions) {
    table.set_bloom_filter(10.0, false);
    table.set_partition_filters(true);
    table.set_whole_key_filtering(true);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_data_block_hash_ratio(0.75);
}

/// Files with a dense stretch of deletions (compaction of revisions, a lease with many keys) are
/// compacted soon: a cursor has to step over each of them.
fn compact_deletions(options: &mut Options) {
    options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5);
}
