use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int32Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;

use super::*;

fn schema() -> Arc<Schema> {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, false),
        Field::new("number", DataType::Int32, true),
        Field::new("vector", DataType::FixedSizeList(item, 2), false),
    ]))
}

/// Rows with these numbers, in batches of some rows.
fn rows(numbers: std::ops::Range<i32>) -> Batches {
    let batch = |part: &[i32]| {
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values(part.iter().map(|number| format!("d{number}"))));
        let numbers: ArrayRef =
            Arc::new(part.iter().map(|number| (number % 7 != 0).then_some(*number)).collect::<Int32Array>());
        let values: ArrayRef = Arc::new(part.iter().flat_map(|number| [*number as f32, 1.0]).collect::<Float32Array>());
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let vectors: ArrayRef = Arc::new(FixedSizeListArray::try_new(item, 2, values, None)?);
        RecordBatch::try_new(schema(), vec![ids, numbers, vectors])
    };
    let numbers: Vec<i32> = numbers.collect();
    let batches: Vec<_> = numbers.chunks(300).map(batch).collect();
    Box::new(RecordBatchIterator::new(batches, schema()))
}

/// The rows of a table, by the numbers in their ids.
async fn read(table: &Table) -> Vec<i32> {
    let batches: Vec<RecordBatch> = table.scan(None).await.unwrap().try_collect().await.unwrap();
    let mut all = Vec::new();
    for batch in &batches {
        let (ids, numbers) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int32Type>());
        let vectors = batch.column(2).as_fixed_size_list();
        for at in 0..batch.num_rows() {
            let number: i32 = ids.value(at).strip_prefix('d').unwrap().parse().unwrap();
            assert_eq!(numbers.is_null(at), number % 7 == 0);
            let vector = vectors.value(at);
            assert_eq!(vector.as_primitive::<Float32Type>().values().as_ref(), [number as f32, 1.0]);
            all.push(number);
        }
    }
    all
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A path with letters that URLs would not have.
    fn path(&self) -> String {
        self.directory.path().join("a ß%20 #1.lance").to_string_lossy().into_owned()
    }

    fn files(&self, directory: &str) -> Vec<PathBuf> {
        let found = std::fs::read_dir(PathBuf::from(self.path()).join(directory));
        let mut files: Vec<_> = found.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_may_lead_through_the_folder_above() {
    let place = Place::new();
    std::fs::create_dir(place.directory.path().join("here")).unwrap();
    let path = place.directory.path().join("here/../there/../a.lance").to_string_lossy().into_owned();
    assert!(Table::write(&path, rows(0..3), Mode::Create).await.is_err(), "there is no folder `there`");
    let path = path.replace("there/../", "there/");
    Table::write(&path, rows(0..3), Mode::Create).await.unwrap();
    assert_eq!(read(&Table::open(&path).await.unwrap()).await, [0, 1, 2]);
    assert!(place.directory.path().join("there/a.lance").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_read_in_the_order_in_which_they_were_written() {
    let place = Place::new();
    assert!(matches!(Table::open(&place.path()).await, Err(Error::DatasetNotFound { .. })));
    let mut table = Table::write(&place.path(), rows(0..1000), Mode::Create).await.unwrap();
    assert!(matches!(
        Table::write(&place.path(), rows(0..1), Mode::Create).await,
        Err(Error::DatasetAlreadyExists { .. })
    ));
    for part in [1000..1001, 5..6, 1001..1400] {
        table.append(rows(part)).await.unwrap();
    }
    let expected: Vec<i32> = (0..1001).chain(5..6).chain(1001..1400).collect();
    for table in [table.clone(), Table::open(&place.path()).await.unwrap()] {
        assert_eq!((table.version(), table.fragments(), table.has_column("number")), (4, 4, true));
        assert_eq!(read(&table).await, expected);
    }
    // Some columns, in the order that is asked for.
    let batches: Vec<RecordBatch> = table.scan(Some(&["number", "id"])).await.unwrap().try_collect().await.unwrap();
    assert_eq!(batches[0].schema().field(0).name(), "number");
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1401);
    assert!(table.scan(Some(&["nothing"])).await.is_err());
    let replaced = Table::write(&place.path(), rows(7..9), Mode::Overwrite).await.unwrap();
    assert_eq!((read(&replaced).await, replaced.version()), (vec![7, 8], 5));
    // An old version is still there.
    assert_eq!(read(&replaced.at(4).await.unwrap()).await, expected);
    assert!(replaced.at(9).await.is_err());
    // No rows are a table, too.
    let none = Table::write(&place.path(), rows(0..0), Mode::Overwrite).await.unwrap();
    assert!(read(&none).await.is_empty() && none.has_column("vector"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_has_not_seen_a_version_changes_nothing() {
    let place = Place::new();
    let mut table = Table::write(&place.path(), rows(0..10), Mode::Create).await.unwrap();
    let mut other = Table::open(&place.path()).await.unwrap();
    other.append(rows(10..12)).await.unwrap();
    let files = place.files("data");
    let texts = HashSet::from(["d3"]);
    for failed in [table.append(rows(20..30)).await, table.delete("id", &texts).await] {
        assert!(matches!(failed, Err(Error::CommitConflict { .. })), "{failed:?}");
    }
    assert_eq!(place.files("data"), files, "what was written for nothing is gone");
    assert_eq!(read(&Table::open(&place.path()).await.unwrap()).await, (0..12).collect::<Vec<_>>());
    table.catch_up().await.unwrap();
    table.append(rows(20..22)).await.unwrap();
    assert_eq!(read(&table).await, (0..12).chain(20..22).collect::<Vec<_>>());
    // Another schema.
    let batch = RecordBatch::try_from_iter([("id", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).unwrap();
    let other = RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
    assert!(table.append(Box::new(other)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_rows_are_not_read_and_compaction_forgets_them() {
    let place = Place::new();
    let mut table = Table::write(&place.path(), rows(0..100), Mode::Create).await.unwrap();
    for part in [100..110, 110..120, 120..300] {
        table.append(rows(part)).await.unwrap();
    }
    let texts: Vec<String> =
        (0..300).filter(|n| n % 10 == 3 || (100..110).contains(n)).map(|n| format!("d{n}")).collect();
    table.delete("id", &texts.iter().map(String::as_str).collect()).await.unwrap();
    table.delete("id", &HashSet::from(["d5", "d'5", "no"])).await.unwrap();
    let version = table.version();
    table.delete("id", &HashSet::from(["d5"])).await.unwrap();
    assert_eq!(table.version(), version, "nothing is deleted, so there is no new version");
    assert!(table.delete("number", &HashSet::from(["1"])).await.is_err());
    let expected: Vec<i32> = (0..300).filter(|n| n % 10 != 3 && !(100..110).contains(n) && *n != 5).collect();
    assert_eq!((read(&table).await, table.fragments()), (expected.clone(), 3));
    // The last file is as large as is wanted; the others are merged, and come after it.
    table.compact(150).await.unwrap();
    let (large, small): (Vec<i32>, Vec<i32>) = expected.iter().partition(|n| **n >= 120);
    let expected = [large, small].concat();
    assert_eq!((read(&table).await, table.fragments()), (expected.clone(), 2));
    table.compact(1000).await.unwrap();
    assert_eq!((read(&table).await, table.fragments()), (expected.clone(), 1));
    let version = table.version();
    table.compact(1000).await.unwrap();
    assert_eq!(table.version(), version);
    table.remove_old_versions(true).await.unwrap();
    let count = |directory: &str| place.files(directory).len();
    assert_eq!((count("data"), count("_deletions"), count("_transactions")), (1, 0, 1));
    assert_eq!(read(&Table::open(&place.path()).await.unwrap()).await, expected);
    // Many rows are written to several files.
    for part in [300..600, 600..900, 900..1200] {
        table.append(rows(part)).await.unwrap();
    }
    table.compact(400).await.unwrap();
    assert_eq!((read(&table).await, table.fragments()), (expected.iter().copied().chain(300..1200).collect(), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn tagged_versions_are_kept() {
    let place = Place::new();
    let mut table = Table::write(&place.path(), rows(0..10), Mode::Create).await.unwrap();
    assert!(table.tags().await.unwrap().is_empty());
    table.tag("first").await.unwrap();
    assert!(table.tag("first").await.is_err() && table.tag("../up").await.is_err() && table.tag("").await.is_err());
    for part in [10..20, 20..30] {
        table.append(rows(part)).await.unwrap();
    }
    table.delete("id", &HashSet::from(["d0"])).await.unwrap();
    table.tag("zweite-ß").await.unwrap();
    table.append(rows(30..31)).await.unwrap();
    assert!(table.remove_old_versions(true).await.is_err());
    table.remove_old_versions(false).await.unwrap();
    let mut tags = table.tags().await.unwrap();
    tags.sort_by_key(|tag| tag.version);
    let named: Vec<_> = tags.iter().map(|tag| (tag.name.as_str(), tag.version, tag.created.is_some())).collect();
    assert_eq!(named, [("first", 1, true), ("zweite-ß", 4, true)]);
    assert_eq!(read(&table.at(1).await.unwrap()).await, (0..10).collect::<Vec<_>>());
    assert_eq!(read(&table.at(4).await.unwrap()).await, (1..30).collect::<Vec<_>>());
    assert!(table.at(2).await.is_err());
    table.untag("first").await.unwrap();
    assert!(table.untag("first").await.is_err());
    table.remove_old_versions(false).await.unwrap();
    assert!(table.at(1).await.is_err());
    assert_eq!(read(&table).await, (1..31).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_file_is_read_by_itself_and_what_a_killed_writer_left_is_removed() {
    let place = Place::new();
    let table = Table::write(&place.path(), rows(0..1000), Mode::Create).await.unwrap();
    let file = place.files("data").remove(0);
    let reader = FileReader::open(&file).await.unwrap();
    assert_eq!(reader.rows(), 1000);
    let part = reader.read(990..1000).await.unwrap();
    assert_eq!((part.num_rows(), part.column(0).as_string::<i32>().value(9)), (10, "d999"));
    assert!(reader.read(990..1001).await.is_err());
    let left = file.with_file_name(".tmpAbCdEf");
    std::fs::write(&left, "half").unwrap();
    std::fs::write(file.with_file_name("other.lance"), "no manifest names it").unwrap();
    table.remove_old_versions(true).await.unwrap();
    assert_eq!(place.files("data"), std::slice::from_ref(&file));
    let bytes = std::fs::read(&file).unwrap();
    for length in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&left, &bytes[..length]).unwrap();
        assert!(FileReader::open(&left).await.is_err(), "{length}");
    }
}
