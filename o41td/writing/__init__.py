"""Writing data sets that read fast.

    records ─► record_batches ─► RowSpool ─► encode_shard ─► DataFolder: drafts, shards, completion records
                                    │   layout: what each column needs to stream fast
                                    └── packed_lists
    DatasetWriter: many processes save shards, one commits the manifest

Only those who write import this package; a stream reads what comes out like any other Parquet.
"""
