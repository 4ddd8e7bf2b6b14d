//! The bytes of each table of an index.

use dedupfs::db::{Db as _, IndexDb, Table};
use std::path::Path;

/// Prints keys and values of each table of the overlay's index, which must not be mounted, and their bytes by `unit`.
pub fn print(root: &Path, units: u64, unit: &str) {
    let db = IndexDb::open(&root.join(".dedupfs/index"), 64 << 20).unwrap();
    println!("table            entries    bytes       bytes {unit}");
    let mut all = 0;
    for table in Table::ALL {
        let (mut entries, mut bytes) = (0u64, 0);
        let mut count = |key: &[u8], value: &[u8]| {
            entries += 1;
            bytes += key.len() + value.len();
            true
        };
        db.scan(table, &[], &mut count).unwrap();
        all += bytes;
        if bytes > 0 {
            println!(
                "{:15} {entries:8} {bytes:10}  {:12.4}",
                format!("{table:?}"),
                bytes as f64 / units as f64
            );
        }
    }
    println!("all                      {all:10}  {:12.4}", all as f64 / units as f64);
}
