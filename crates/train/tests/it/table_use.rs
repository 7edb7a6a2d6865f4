//! Compares the reported changes of tables with plain sums over whole tables.

use device::Cpu;
use schema::{DataType, JobConfig, Optimizer, Rank, ShardingPlan};
use train::parameter::TileState;
use train::table_use::{TableUse, measure_tile, sum_tiles};
use train::{RunEvent, initial};

use crate::run;
use crate::samples;

/// Creates the initial tiles of all ranks. In some rows of the first table, 1 is added to a tile's
/// first and last columns.
fn tiles(config: &JobConfig, plan: &ShardingPlan, changed: &[u64]) -> Vec<TileState> {
    let (cpu, mut states) = (Cpu::new(2), Vec::new());
    for rank in 0..plan.world_size() {
        for tile in plan.tiles_of(Rank(rank)) {
            let mut weight = initial::tile_weights(&cpu.pool, &config.model, tile);
            let mut values = weight.view().to_f32();
            let dim = tile.dim();
            for &row in changed.iter().filter(|row| tile.table.0 == 0 && tile.rows.contains(row)) {
                let at = (row - tile.rows.start) as usize * dim;
                values[at] += 1.0;
                values[at + dim - 1] += 1.0;
            }
            weight.view_mut().fill_from(&values);
            states.push(TileState { tile: tile.clone(), weight, state: [][..].into() });
        }
    }
    states
}

fn used(config: &JobConfig, tiles: &[TileState], threads: usize) -> Vec<TableUse> {
    let cpu = Cpu::new(threads);
    let parts: Vec<_> =
        tiles.iter().map(|tile| measure_tile(&cpu.pool, &config.model, &tile.view())).collect();
    sum_tiles(&config.model, &parts)
}

#[test]
fn changed_rows_and_their_norm_do_not_depend_on_the_tiling() {
    let changed = [0, 3, 4095, 4096, 9999];
    for data_type in [DataType::F32, DataType::F16, DataType::Bf16] {
        let mut config =
            samples::job(&[(10_000, 8), (50, 8)], "{ kind = \"dot\" }", Optimizer::Sgd);
        config.model.tables.iter_mut().for_each(|table| table.data_type = data_type);
        let tables = &config.model.tables;
        let whole = tiles(&config, &ShardingPlan::table_wise(tables, 1), &changed);
        let values = whole[0].weight.view().to_f32();
        let of_row = |&row: &u64| -> f64 {
            values[row as usize * 8..][..8].iter().map(|&v| f64::from(v).powi(2)).sum()
        };
        let norm = (changed.iter().map(of_row).sum::<f64>() / 5.0).sqrt();
        let one = used(&config, &whole, 1);
        assert_eq!((one[0].rows_changed, one[1].rows_changed), (5, 0), "{data_type:?}");
        assert!((one[0].row_norm - norm).abs() < 1e-12, "{} {norm}", one[0].row_norm);
        assert_eq!(one[1].row_norm.to_bits(), 0);
        assert_eq!(one, used(&config, &whole, 3));
        let by_rows = tiles(&config, &ShardingPlan::row_wise(tables, 3), &changed);
        let split = used(&config, &by_rows, 2);
        assert_eq!(split[0].rows_changed, 5);
        assert!((split[0].row_norm - norm).abs() < 1e-12, "{} {norm}", split[0].row_norm);
        // If columns are split, each changed row has two tiles, and 1 was added to two values of
        // each tile.
        let by_columns = tiles(&config, &ShardingPlan::column_wise(tables, 2), &changed);
        assert_eq!(used(&config, &by_columns, 1)[0].rows_changed, 5);
    }
}

#[test]
fn a_run_reports_table_use_with_each_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = run::dataset(folder.path());
    for make in [ShardingPlan::mixed, ShardingPlan::column_wise] {
        let name = folder.path().join(format!("{make:p}"));
        let request = run::request(&name, &dataset, run::plan(make, 2));
        let mut told = Vec::new();
        let mut saved = Vec::new();
        train::run(&request, Cpu::open, &mut |event| match event {
            RunEvent::Tables { step, tables } => told.push((step, tables.to_vec())),
            RunEvent::Saved { step, .. } => saved.push(step),
            _ => {}
        })
        .unwrap();
        assert_eq!(told.iter().map(|(step, _)| *step).collect::<Vec<_>>(), saved);
        let counts = || told.iter().map(|(_, tables)| tables[0].rows_changed);
        assert!(counts().is_sorted(), "{told:?}");
        // Column `a` has the ids 0 to 39, and its table has 50 rows.
        assert_eq!(counts().next_back(), Some(40), "{told:?}");
        assert!(told.iter().all(|(_, tables)| tables[0].row_norm > 0.0), "{told:?}");
    }
}
