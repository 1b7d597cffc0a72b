//! Foresees a full disk: while there is less room than the reserve, writes are refused as beyond the
//! quota; what gives room back still works, and so do reads.
//!
//! Input: the room that the file systems of the data and of the log have. Output: the alarm NOSPACE
//! of this member, raised while the log can still be written, and taken back when there is room
//! again. etcd goes on until a write fails, and ends then.
//!
//! **Invariant:** an alarm that somebody else raised, or that stands since before this process
//! started, is left to the operator.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainstay_proto::etcdserverpb::alarm_request::AlarmAction;
use mainstay_proto::etcdserverpb::{AlarmRequest, AlarmType};

use crate::core::Core;
use crate::error::Result;

/// How often the file systems are asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Part of a file system that the reserve takes at most when none is asked for.
const LARGEST_PART: u64 = 20;
/// The reserve when none is asked for: what is written without any request (a flush of the engine,
/// segments of the log that are prepared) fits into it several times.
const RESERVE: u64 = 256 << 20;

/// Room above the reserve that the way back takes at most.
const MORE: u64 = 64 << 20;

/// Room of one file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    available: u64,
    total: u64,
}

impl Room {
    fn of(path: &Path) -> std::io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Room {
            available: found.f_bavail.saturating_mul(found.f_frsize),
            total: found.f_blocks.saturating_mul(found.f_frsize),
        })
    }

    /// What is kept free of it.
    fn reserve(self, asked: Option<u64>) -> u64 {
        asked.unwrap_or_else(|| RESERVE.min(self.total / LARGEST_PART))
    }
}

/// Whether room is low, after it was `low` before. The way back takes some more, so that one write
/// does not turn it around at once.
fn is_low(low: bool, available: u64, reserve: u64) -> bool {
    let more = if low { (reserve / 4).min(MORE) } else { 0 };
    available < reserve.saturating_add(more)
}

/// Watches the file systems of the data and of the log.
pub(crate) async fn run(core: Arc<Core>) {
    let mut places: Vec<(&str, PathBuf)> = vec![("data", core.config.data_dir.clone())];
    if let Some(dir) = &core.config.wal_dir {
        places.push(("wal", dir.clone()));
    }
    let mut unknown = false;
    // The alarm is ours to take back.
    let mut raised = false;
    loop {
        let looked = places.clone();
        let rooms = tokio::task::spawn_blocking(move || {
            let room = |(name, path): (&'static str, PathBuf)| Ok((name, Room::of(&path)?));
            looked.into_iter().map(room).collect::<std::io::Result<Vec<_>>>()
        });
        match rooms.await {
            Ok(Ok(rooms)) => look(&core, &rooms, &mut raised).await,
            Ok(Err(error)) if !unknown => {
                unknown = true;
                tracing::warn!(%error, "cannot find out how full the disk is");
            }
            Ok(Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn look(core: &Arc<Core>, rooms: &[(&'static str, Room)], raised: &mut bool) {
    let was_low = core.disk_is_low();
    let mut low = false;
    for (place, room) in rooms {
        let reserve = room.reserve(core.config.disk_reserve_bytes);
        core.metrics.own.disk(place, room.available, reserve);
        if is_low(was_low, room.available, reserve) {
            low = true;
            if !was_low {
                tracing::error!(
                    place,
                    available_bytes = room.available,
                    reserve_bytes = reserve,
                    "the disk is almost full: refusing writes and raising the alarm NOSPACE. Make \
                     room on it; the alarm goes by itself then"
                );
            }
        }
    }
    core.set_disk_low(low);
    let own = core.identity.member_id;
    let nospace = AlarmType::Nospace as i32;
    let stands = core.alarms().iter().any(|alarm| alarm.member_id == own && alarm.alarm == nospace);
    if low && !stands {
        match alarm(core, AlarmAction::Activate).await {
            Ok(()) => *raised = true,
            Err(error) => tracing::warn!(%error, "failed to raise the alarm NOSPACE"),
        }
    } else if !low && *raised {
        if !stands {
            // Somebody was quicker.
            *raised = false;
        } else if core.is_over_quota(1) {
            // It would be raised again at once.
        } else {
            match alarm(core, AlarmAction::Deactivate).await {
                Ok(()) => {
                    *raised = false;
                    tracing::info!("there is room on the disk again: took the alarm NOSPACE back");
                }
                Err(error) => tracing::warn!(%error, "failed to take the alarm NOSPACE back"),
            }
        }
    }
}

async fn alarm(core: &Core, action: AlarmAction) -> Result<()> {
    let request = AlarmRequest {
        action: action as i32,
        member_id: core.identity.member_id,
        alarm: AlarmType::Nospace as i32,
    };
    core.alarm(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_is_below_the_reserve_and_the_way_back_takes_more() {
        assert!(!is_low(false, 100, 100));
        assert!(is_low(false, 99, 100));
        assert!(is_low(true, 124, 100));
        assert!(!is_low(true, 125, 100));
        // Without a reserve there is never too little.
        assert!(!is_low(false, 0, 0) && !is_low(true, 0, 0));
    }

    #[test]
    fn a_small_file_system_keeps_a_small_reserve() {
        let small = Room { available: 0, total: 1 << 30 };
        assert_eq!(small.reserve(None), (1 << 30) / 20);
        assert_eq!(Room { total: 1 << 40, ..small }.reserve(None), RESERVE);
        assert_eq!(small.reserve(Some(7)), 7);
        assert!(Room::of(Path::new("/")).unwrap().total > 0);
    }
}
