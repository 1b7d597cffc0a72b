//! Rows in memory, and files made of them, for the tests of this crate.

use std::collections::BTreeMap;
use std::convert::Infallible;

use mainstay_formats::ReadAt;
use mainstay_formats::bbolt::{Plan, ReadError, Reader, RowFn, Rows};

/// The rows of some buckets, by name and key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content(pub(crate) BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>);

impl Content {
    pub(crate) fn put(&mut self, bucket: &str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.0.entry(bucket.to_owned()).or_default().insert(key.into(), value.into());
    }

    /// The bytes of the file that holds these rows.
    pub(crate) fn file(&self) -> Vec<u8> {
        let plan = Plan::measure(self.0.keys(), self).expect("sorted rows of allowed sizes");
        let mut file = Vec::new();
        plan.write(self, 32 * 1024, &mut |chunk| {
            file.extend_from_slice(&chunk);
            Ok::<(), Infallible>(())
        })
        .expect("the same rows again");
        assert_eq!(file.len() as u64, plan.total_size());
        file
    }

    /// All rows of a file. Buckets in buckets are left out.
    pub(crate) fn read<R: ReadAt>(reader: &Reader<R>) -> Result<Content, ReadError> {
        let mut content = Content::default();
        for name in reader.buckets()? {
            let Some(bucket) = reader.bucket(&name)? else { continue };
            let rows = content.0.entry(String::from_utf8_lossy(&name).into_owned()).or_default();
            reader.for_each(&bucket, |key, value| {
                rows.insert(key.to_vec(), value.to_vec());
                Ok::<(), ReadError>(())
            })?;
        }
        Ok(content)
    }
}

impl Rows for Content {
    type Error = Infallible;

    fn for_each(&self, bucket: &str, row: &mut RowFn<'_>) -> Result<(), Infallible> {
        for (key, value) in &self.0[bucket] {
            if row(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
